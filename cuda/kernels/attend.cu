// Attention by an explicit list of keys: any head width, either dtype, no tensor cores. It serves where FlashInfer
// does not (float32, other head widths) and in deterministic mode.
//
//     query row r, head h reads keys[first[r]] .. keys[first[r] + count[r] - 1], in that order
//     key >= 0: token of this step (k, v [tokens][row of `stride` elements]); key < 0: pool slot -1 - key
//
// One warp a (row, head). Keys are taken 32 at a time from the front of the row's list, which is in order of position
// whether a key lies in the pool or in the step. So a row's bits depend on its own keys alone: not on
// other rows, on the chunks of its prompt, or on the cache.
extern "C" __global__ void attend(const element* q, int q_stride, const element* k, const element* v, int stride,
                                  const element* pool_k, const element* pool_v, const int* keys, const int* first,
                                  const int* count, int heads, int kv_heads, float scale, element* out) {
    begin();
    constexpr int each = (HEAD_DIM + 31) / 32;
    extern __shared__ float shared[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int head = blockIdx.y * (blockDim.x >> 5) + warp;
    const long long row = blockIdx.x;
    if (head >= heads) return;
    const int kv = head / (heads / kv_heads);
    float* query = shared + warp * HEAD_DIM;
    for (int i = lane; i < HEAD_DIM; i += 32) query[i] = widen(q[row * q_stride + head * HEAD_DIM + i]) * scale;
    __syncwarp();

    float sum = 0.0f, most = -INFINITY_F, acc[each];
    for (int n = 0; n < each; n++) acc[n] = 0.0f;
    const int total = count[row];
    const int* list = keys + first[row];
    for (int start = 0; start < total; start += 32) {
        const int mine = start + lane;
        const int key = mine < total ? list[mine] : 0;
        float score = -INFINITY_F;
        if (mine < total) {
            const element* at = key >= 0 ? k + (long long)key * stride + kv * HEAD_DIM
                                         : pool_k + ((long long)(-1 - key) * kv_heads + kv) * HEAD_DIM;
            score = 0.0f;
            for (int i = 0; i < HEAD_DIM; i++) score += query[i] * widen(at[i]);
        }
        const float higher = fmaxf(most, warp_max(score));
        const float kept = expf(most - higher);  // most is -inf at first: 0
        const float weight = mine < total ? expf(score - higher) : 0.0f;
        sum = sum * kept + warp_sum(weight);
        for (int n = 0; n < each; n++) acc[n] *= kept;
        for (int j = 0; j < 32 && start + j < total; j++) {
            const int other = __shfl_sync(0xffffffffu, key, j);
            const float w = __shfl_sync(0xffffffffu, weight, j);
            const element* at = other >= 0 ? v + (long long)other * stride + kv * HEAD_DIM
                                           : pool_v + ((long long)(-1 - other) * kv_heads + kv) * HEAD_DIM;
            for (int n = 0; n < each; n++) {
                const int i = lane + 32 * n;
                if (i < HEAD_DIM) acc[n] += w * widen(at[i]);
            }
        }
        most = higher;
    }
    for (int n = 0; n < each; n++) {
        const int i = lane + 32 * n;
        if (i < HEAD_DIM) out[(row * heads + head) * HEAD_DIM + i] = narrow(total ? acc[n] / sum : 0.0f);
    }
}
