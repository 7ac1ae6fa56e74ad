// Rows of float32 logits [rows][vocab] -> numbers. Sums are in float64, in an order that depends on vocab, the block and
// the cluster alone.

// The statistics of a part of a row: of a block, or of a warp.
struct Found {
    double sum;  // of exp(l - most)
    float most;
    int best;  // the first id of `most`
    int bad;   // a logit is not finite
};

__device__ __forceinline__ Found both(Found a, Found b) {
    const float most = fmaxf(a.most, b.most);
    const bool first = a.most > b.most || (a.most == b.most && a.best < b.best);
    Found out;
    out.most = most;
    out.sum = (a.sum > 0.0 ? a.sum * exp((double)a.most - (double)most) : 0.0) +
              (b.sum > 0.0 ? b.sum * exp((double)b.most - (double)most) : 0.0);
    out.best = first ? a.best : b.best;
    out.bad = a.bad | b.bad;
    return out;
}

// Takes the logits of a part of a line, by 16 bytes if lines begin at 16 bytes. A function, for NVRTC compiles no generic
// lambda for the device.
template <class Take>
__device__ void each_logit(const float* line, int vocab, int from, int to, Take take) {
    if (vocab % 4) {
        for (int i = from + (int)threadIdx.x; i < to; i += blockDim.x) take(i, line[i]);
        return;
    }
    for (int i = from + (int)threadIdx.x * 4; i < to; i += blockDim.x * 4) {
        const float4 four = *(const float4*)(line + i);
        take(i, four.x);
        take(i + 1, four.y);
        take(i + 2, four.z);
        take(i + 3, four.w);
    }
}

// Largest, log(sum(exp(l - largest))), the first id of the largest where `best` is there, and whether every logit is finite. A cluster has a
// row, each of its blocks a part, which it reads twice: from memory, then from the caches. Dynamic shared memory: a
// Found for each warp and one for the block.
extern "C" __global__ void row_stats(const float* logits, int vocab, float* largest, double* rest, int* best,
                                     int* finite) {
    begin();
    extern __shared__ float shared[];
    Found* warps = (Found*)shared;
    Found* own = warps + 32;
    const int blocks = cluster_size(), rank = cluster_rank(), row = blockIdx.x / blocks;
    const int each = ((vocab + blocks - 1) / blocks + 3) / 4 * 4, from = rank * each, to = min(from + each, vocab);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, count = blockDim.x >> 5;
    const float* line = logits + (long long)row * vocab;
    Found found = {0.0, -INFINITY_F, vocab, 0};
    each_logit(line, vocab, from, to, [&](int i, float v) {
        if (v > found.most || (v == found.most && i < found.best)) {
            found.most = v;
            found.best = i;
        }
        found.bad |= !(fabsf(v) < INFINITY_F);
    });
    const float most = warp_max(found.most);  // of the warp: one exponent's base for its lanes
    each_logit(line, vocab, from, to, [&](int, float v) {
        if (v > -INFINITY_F) found.sum += (double)expf(v - most);
    });
    if (found.most != most) found.best = vocab;
    for (int step = 16; step; step >>= 1) {
        found.sum += __shfl_xor_sync(0xffffffffu, found.sum, step);
        found.best = min(found.best, __shfl_xor_sync(0xffffffffu, found.best, step));
        found.bad |= __shfl_xor_sync(0xffffffffu, found.bad, step);
    }
    found.most = most;
    if (lane == 0) warps[warp] = found;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < count; i++) found = both(found, warps[i]);
        *own = found;
    }
    cluster_sync();
    if (rank == 0 && threadIdx.x == 0) {
        for (int i = 1; i < blocks; i++) found = both(found, *peer(own, i));
        largest[row] = found.most;
        rest[row] = log(found.sum);
        if (best) best[row] = found.best < vocab ? found.best : 0;
        finite[row] = !found.bad;
    }
    cluster_sync();  // no block leaves while the first may read its Found
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
