// One token out of a row, by the definitions of readouts/draw.py and in their order:
// temperature, top-k, top-p, min-p, then the inverse of the cumulative distribution, in order of ids, at `uniform`.
// Cut tokens get weight 0. Everything is in float64, in an order that depends on vocab and the block alone.
//
// Thresholds are found by bisection over the 32 bits of a logit's ordered key: 32 passes over a row that lies in the
// L2 cache, no sorting, no atomics on floating point.

struct Row {
    const float* logits;
    double* weights;
    int vocab;
};

// Sum of the weights whose key is at least `key`.
__device__ double mass_from(const Row& row, u32 key) {
    double sum = 0.0;
    for (int i = threadIdx.x; i < row.vocab; i += blockDim.x)
        if (ordered(row.logits[i]) >= key) sum += row.weights[i];
    return block_sum(sum);
}

__device__ int count_from(const Row& row, u32 key) {
    int count = 0;
    for (int i = threadIdx.x; i < row.vocab; i += blockDim.x) count += ordered(row.logits[i]) >= key;
    return block_sum(count);
}

// Keeps the tokens above `key` and the first `ties` tokens, in order of ids, that are equal to it and have weight.
__device__ void keep(const Row& row, u32 key, int ties) {
    __shared__ int before[1024];
    const int span = (row.vocab + blockDim.x - 1) / blockDim.x;
    const int first = threadIdx.x * span, last = min(first + span, row.vocab);
    int mine = 0;
    for (int i = first; i < last; i++) mine += ordered(row.logits[i]) == key && row.weights[i] > 0.0;
    __syncthreads();
    before[threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.x == 0) {
        int sum = 0;
        for (int t = 0; t < blockDim.x; t++) {
            const int n = before[t];
            before[t] = sum;
            sum += n;
        }
    }
    __syncthreads();
    int rank = before[threadIdx.x];
    for (int i = first; i < last; i++) {
        const u32 own = ordered(row.logits[i]);
        if (own < key) row.weights[i] = 0.0;
        if (own == key && row.weights[i] > 0.0 && rank++ >= ties) row.weights[i] = 0.0;
    }
    __syncthreads();
}

__device__ void keep_top_k(const Row& row, int k) {
    u32 key = 0;  // the largest key that at least k logits reach
    for (int bit = 31; bit >= 0; bit--)
        if (count_from(row, key | 1u << bit) >= k) key |= 1u << bit;
    const int above = key == 0xffffffffu ? 0 : count_from(row, key + 1);
    // Of equal logits the smaller ids, with any weights: weights underflow together.
    keep(row, key, k - above);
}

__device__ void keep_top_p(const Row& row, float p) {
    const double wanted = (double)p * mass_from(row, 0);
    u32 key = 0;  // the largest key from which on the weights reach `wanted`
    for (int bit = 31; bit >= 0; bit--)
        if (mass_from(row, key | 1u << bit) >= wanted) key |= 1u << bit;
    const double above = key == 0xffffffffu ? 0.0 : mass_from(row, key + 1);
    double one = 0.0;  // every tie has the same weight
    for (int i = threadIdx.x; i < row.vocab; i += blockDim.x)
        if (ordered(row.logits[i]) == key) one = fmax(one, row.weights[i]);
    __shared__ double weight;
    if (threadIdx.x == 0) weight = 0.0;
    __syncthreads();
    if (one > 0.0) weight = one;  // all that write, write the same value
    __syncthreads();
    int ties = 1;
    if (weight > 0.0) {
        const double missing = ceil((wanted - above) / weight);
        ties = missing < 1.0 ? 1 : missing > (double)row.vocab ? row.vocab : (int)missing;
    }
    keep(row, key, ties);
}

__device__ int draw(const Row& row, double uniform) {
    __shared__ double before[1024];
    __shared__ double total;
    __shared__ int chosen, highest;
    const int span = (row.vocab + blockDim.x - 1) / blockDim.x;
    const int first = threadIdx.x * span, last = min(first + span, row.vocab);
    double mine = 0.0;
    int kept = -1;
    for (int i = first; i < last; i++) {
        mine += row.weights[i];
        if (row.weights[i] > 0.0) kept = i;
    }
    __syncthreads();
    before[threadIdx.x] = mine;
    if (threadIdx.x == 0) {
        chosen = row.vocab;
        highest = 0;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double sum = 0.0;
        for (int t = 0; t < blockDim.x; t++) {
            const double n = before[t];
            before[t] = sum;
            sum += n;
        }
        total = sum;
    }
    __syncthreads();
    if (kept >= 0) atomicMax(&highest, kept);
    const double wanted = uniform * total;
    double sum = before[threadIdx.x];
    for (int i = first; i < last; i++) {
        sum += row.weights[i];
        if (sum > wanted && row.weights[i] > 0.0) {
            atomicMin(&chosen, i);
            break;
        }
    }
    __syncthreads();
    return chosen < row.vocab ? chosen : highest;  // uniform * total may round up to the total
}

// finite[row] == 0: the row is bad and gets token 0. weights [rows][vocab] is scratch. blockDim.x <= 1024.
extern "C" __global__ void sample(const float* logits, int vocab, const float* temperature, const int* top_k,
                                  const float* top_p, const float* min_p, const double* uniform, const int* finite,
                                  double* weights, int* tokens) {
    begin();
    const int at = blockIdx.x;
    Row row = {logits + (long long)at * vocab, weights + (long long)at * vocab, vocab};
    if (!finite[at]) {
        if (threadIdx.x == 0) tokens[at] = 0;
        return;
    }
    float most = -INFINITY_F;
    for (int i = threadIdx.x; i < vocab; i += blockDim.x) most = fmaxf(most, row.logits[i]);
    most = block_max(most);
    const double t = (double)temperature[at];
    if (t <= 0.0) {
        __shared__ int best;
        if (threadIdx.x == 0) best = vocab;
        __syncthreads();
        for (int i = threadIdx.x; i < vocab; i += blockDim.x)
            if (row.logits[i] == most) {
                atomicMin(&best, i);
                break;
            }
        __syncthreads();
        if (threadIdx.x == 0) tokens[at] = best < vocab ? best : 0;
        return;
    }
    for (int i = threadIdx.x; i < vocab; i += blockDim.x)
        row.weights[i] = exp(((double)row.logits[i] - (double)most) / t);
    __syncthreads();
    if (top_k[at] > 0 && top_k[at] < vocab) keep_top_k(row, top_k[at]);
    if (top_p[at] < 1.0f) keep_top_p(row, top_p[at]);
    if (min_p[at] > 0.0f) {  // the best token is never cut, and its weight is 1
        for (int i = threadIdx.x; i < vocab; i += blockDim.x)
            if (row.weights[i] < (double)min_p[at]) row.weights[i] = 0.0;
        __syncthreads();
    }
    const int token = draw(row, uniform[at]);
    if (threadIdx.x == 0) tokens[at] = token;
}
