// Rows of float32 logits [rows][vocab] -> numbers. One block of whole warps a row (or a pair); sums in float64 in an
// order that depends on vocab and the block alone.

// largest, log(sum(exp(l - largest))), the first id of the largest, and whether every logit is finite.
extern "C" __global__ void row_stats(const float* logits, int vocab, float* largest, double* rest, int* best,
                                     int* finite) {
    begin();
    const float* line = logits + (long long)blockIdx.x * vocab;
    float most = -INFINITY_F;
    int bad = 0;
    for (int i = threadIdx.x; i < vocab; i += blockDim.x) {
        most = fmaxf(most, line[i]);
        bad |= !(fabsf(line[i]) < INFINITY_F);
    }
    most = block_max(most);
    bad = block_sum(bad);
    double sum = 0.0;
    int at = vocab;
    for (int i = threadIdx.x; i < vocab; i += blockDim.x) {
        sum += (double)expf(line[i] - most);
        if (line[i] == most && i < at) at = i;
    }
    sum = block_sum(sum);
    __shared__ int first;
    if (threadIdx.x == 0) first = vocab;
    __syncthreads();
    if (at < vocab) atomicMin(&first, at);
    __syncthreads();
    if (threadIdx.x == 0) {
        largest[blockIdx.x] = most;
        rest[blockIdx.x] = log(sum);
        best[blockIdx.x] = first < vocab ? first : 0;
        finite[blockIdx.x] = !bad;
    }
}

// Pair p: the logprob of targets[p] in row rows[p] (-1: skipped), never above 0, and where `ranks` is there 1 + how many
// tokens are better; of equal ones the smaller id is.
extern "C" __global__ void pick(const float* logits, int vocab, const int* rows, const int* targets,
                                const float* largest, const double* rest, double* logprobs, int* ranks) {
    begin();
    const int row = rows[blockIdx.x], target = targets[blockIdx.x];
    if (row < 0) return;
    const float* line = logits + (long long)row * vocab;
    const float value = line[target];
    if (threadIdx.x == 0) {
        const double logprob = ((double)value - (double)largest[row]) - rest[row];
        logprobs[blockIdx.x] = logprob > 0.0 ? 0.0 : logprob;
    }
    if (!ranks) return;
    int better = 0;
    for (int i = threadIdx.x; i < vocab; i += blockDim.x) better += line[i] > value || (line[i] == value && i < target);
    better = block_sum(better);
    if (threadIdx.x == 0) ranks[blockIdx.x] = 1 + better;
}

// Pair p: the logit of token targets[p] for row rows[p] (-1: skipped) of `normed`, by that token's row of the head alone.
// One block a pair; widths are multiples of 4.
extern "C" __global__ void labels(const element* normed, const element* head, int width, const int* rows,
                                  const int* targets, double* logits) {
    begin();
    const int row = rows[blockIdx.x];
    if (row < 0) return;
    const element4* x = (const element4*)(normed + (long long)row * width);
    const element4* w = (const element4*)(head + (long long)targets[blockIdx.x] * width);
    float sum = 0.0f;
    for (int i = threadIdx.x; i < width / 4; i += blockDim.x) {
        const element4 a = x[i], b = w[i];
        sum += widen(a.x) * widen(b.x) + widen(a.y) * widen(b.y) + widen(a.z) * widen(b.z) + widen(a.w) * widen(b.w);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) logits[blockIdx.x] = (double)sum;
}

// The `count` best of every row, best first, equal ones by id.
extern "C" __global__ void top(const float* logits, int vocab, int count, const float* largest, const double* rest,
                               int* ids, float* logprobs) {
    begin();
    const float* line = logits + (long long)blockIdx.x * vocab;
    __shared__ u64 best;
    u64 below = ~0ull;  // the pair that was taken last; (value, smaller id) sorts as (value, ~id)
    for (int n = 0; n < count; n++) {
        u64 mine = 0;
        for (int i = threadIdx.x; i < vocab; i += blockDim.x) {
            const u64 key = ((u64)ordered(line[i]) << 32) | (u32)~i;
            if (key < below && key > mine) mine = key;
        }
        if (threadIdx.x == 0) best = 0;
        __syncthreads();
        atomicMax(&best, mine);
        __syncthreads();
        below = best;
        __syncthreads();
        if (threadIdx.x == 0) {
            const int id = (int)~(u32)below;
            ids[(long long)blockIdx.x * count + n] = id;
            const double logprob = ((double)line[id] - (double)largest[blockIdx.x]) - rest[blockIdx.x];
            logprobs[(long long)blockIdx.x * count + n] = (float)(logprob > 0.0 ? 0.0 : logprob);
        }
    }
}

// Penalties, bias and masks, in place, in the order and by the formulas of readouts/draw.py. Lists are CSR by row,
// offset by `from` rows; `kept` has a place for every entry of allowed_ids. A block does its row's lists one after another.
extern "C" __global__ void edit(float* logits, int vocab, const float* repetition, const float* presence,
                                const float* frequency, const int* seen, const int* seen_ids, const int* seen_counts,
                                const int* bias, const int* bias_ids, const float* bias_values, const int* allowed,
                                const int* allowed_ids, const int* banned, const int* banned_ids, float* kept) {
    begin();
    const int row = blockIdx.x;
    float* line = logits + (long long)row * vocab;
    for (int i = seen[row] + threadIdx.x; i < seen[row + 1]; i += blockDim.x) {
        double value = (double)line[seen_ids[i]];
        const double penalty = (double)repetition[row];
        value = value > 0.0 ? value / penalty : value * penalty;
        value -= (double)frequency[row] * seen_counts[i] + (seen_counts[i] > 0 ? (double)presence[row] : 0.0);
        line[seen_ids[i]] = (float)value;
    }
    __syncthreads();
    for (int i = bias[row] + threadIdx.x; i < bias[row + 1]; i += blockDim.x)
        line[bias_ids[i]] = (float)((double)line[bias_ids[i]] + (double)bias_values[i]);
    __syncthreads();
    if (allowed[row] < allowed[row + 1]) {
        for (int i = allowed[row] + threadIdx.x; i < allowed[row + 1]; i += blockDim.x) kept[i] = line[allowed_ids[i]];
        __syncthreads();
        for (int i = threadIdx.x; i < vocab; i += blockDim.x) line[i] = -INFINITY_F;
        __syncthreads();
        for (int i = allowed[row] + threadIdx.x; i < allowed[row + 1]; i += blockDim.x) line[allowed_ids[i]] = kept[i];
    }
    __syncthreads();
    for (int i = banned[row] + threadIdx.x; i < banned[row + 1]; i += blockDim.x) line[banned_ids[i]] = -INFINITY_F;
}
