// Attention by explicit lists of keys. It serves where FlashInfer does not (float32, other head widths, sequences that
// a window cuts) and in deterministic mode.
//
//     query row r reads the keys of its list, keys[first[r]] .. keys[first[r] + count[r] - 1], and no more than the
//     last `span` of them
//     key >= 0: token of this step (k, v [tokens][row of `stride` elements]); key < 0: pool slot -1 - key
//
// A list is in order of position whether a key lies in the pool or in the step, and its keys are taken in the same
// groups by every row, counted from its front. So a row's bits depend on its own keys alone: not on other rows, on the
// chunks of its prompt, or on the cache.
struct Lists {
    const element *k, *v, *pool_k, *pool_v;
    int stride, kv_heads, kv;

    __device__ __forceinline__ const element* at(int key, bool value) const {
        return key >= 0 ? (value ? v : k) + (long long)key * stride + kv * HEAD_DIM
                        : (value ? pool_v : pool_k) + ((long long)(-1 - key) * kv_heads + kv) * HEAD_DIM;
    }
};

#ifdef PRELUDE_FRAGMENTS
// By tensor cores. Rows that follow each other in one list are a tile, up to QUERIES queries of the heads that share
// keys; its four warps have 16 queries each. A block has the tiles of a range of rows, or every `spread`-th of them.
// In a tile a row meets later tokens of its own segment with a weight of 0, and where their values are not finite, NaN.
constexpr int QUERIES = 64, KEYS = HEAD_DIM > 128 ? 16 : 32, PART = KEYS * PITCH * 2;

extern "C" __global__ void __launch_bounds__(128, 2)
    attend(const element* q, int q_stride, const element* k, const element* v, int stride, const element* pool_k,
           const element* pool_v, const int* keys, const int* first, const int* count, int heads, int kv_heads,
           float scale, int rows, int span, int spread, element* out) {
    begin();
    extern __shared__ float shared[];
    const u32 queries = shared_address(shared), places = queries + QUERIES * PITCH * 2;
    int* listed = (int*)((char*)shared + QUERIES * PITCH * 2 + 4 * PART);  // [2][KEYS]
    int* begins = listed + 2 * KEYS;                                       // [QUERIES + 1]
    const int group = heads / kv_heads, parts = (group + QUERIES - 1) / QUERIES, height = min(group, QUERIES);
    const Lists lists = {k, v, pool_k, pool_v, stride, kv_heads, (int)blockIdx.y / parts};
    const int head = lists.kv * group + blockIdx.y % parts * QUERIES;
    const int wide = min(height, (lists.kv + 1) * group - head);  // heads of this block
    const int most = QUERIES / height, range = blockIdx.x / spread * most;
    const int thread = threadIdx.x, warp = thread >> 5, lane = thread & 31;

    if (thread <= most) {
        const int row = range + thread;
        begins[thread] = thread == 0 || thread == most || row >= rows || first[row] != first[row - 1] ||
                         count[row] != count[row - 1] + 1;
    }
    __syncthreads();
    int filled = 0, tile = 0;
    for (int at = range; at < min(range + most, rows); at += filled) {
        filled = 1;
        while (!begins[at + filled - range]) filled++;
        if (tile++ % spread != blockIdx.x % spread) continue;

        const int* list = keys + first[at];
        const int ahead = count[at], low = max(0, ahead - span), end = ahead + filled - 1;
        const auto key_of = [&](int i) { return i < end ? list[i] : 0; };
        const auto request = [&](int from, int slot) {
            constexpr int pieces = HEAD_DIM / 8;
            for (int i = thread; i < 2 * KEYS * pieces; i += 128) {
                const int value = i / (KEYS * pieces), key = i / pieces % KEYS, piece = i % pieces * 8;
                const bool there = from + key >= low && from + key < end;
                copy_async(places + (2 * slot + value) * PART + (key * PITCH + piece) * 2,
                           lists.at(there ? listed[slot * KEYS + key] : 0, value) + piece, there);
            }
        };
        int from = low / KEYS * KEYS, slot = 0;
        __syncthreads();  // all have read the tile before
        if (thread < 2 * KEYS) listed[thread] = key_of(from + thread);
        for (int i = thread; i < QUERIES * (HEAD_DIM / 8); i += 128) {
            const int query = i / (HEAD_DIM / 8), piece = i % (HEAD_DIM / 8) * 8, row = min(query / wide, filled - 1);
            copy_async(queries + (query * PITCH + piece) * 2,
                       q + (long long)(at + row) * q_stride + (head + query % wide) * HEAD_DIM + piece,
                       query < filled * wide);
        }
        __syncthreads();
        if (from < end) request(from, 0);
        copy_commit();

        // A lane's two queries, the keys that each sees, and those that the warp's see.
        const int query = warp * 16 + (lane >> 2), last = min(warp * 16 + 15, filled * wide - 1);
        const int row[2] = {query / wide, (query + 8) / wide};
        const int warp_low = max(0, ahead + warp * 16 / wide - span), warp_end = ahead + last / wide;
        const bool idle = warp * 16 > last;
        Attending seen;
        seen.clear();
        for (; from < end; from += KEYS, slot ^= 1) {
            if (from + KEYS < end) request(from + KEYS, slot ^ 1);
            copy_commit();
            const int later = thread < KEYS ? key_of(from + 2 * KEYS + thread) : 0;
            copy_wait<1>();
            __syncthreads();
            if (!idle && from < warp_end && from + KEYS > warp_low) {
                float scores[KEYS / 8][4];
                multiply<KEYS>(scores, queries + warp * 16 * PITCH * 2, places + 2 * slot * PART);
                seen.weigh<KEYS>(scores, scale * 1.44269504f, [&](int key, int half) {
                    const int until = ahead + row[half];
                    return from + key < until && from + key >= until - span;
                });
                seen.add<KEYS>(scores, places + (2 * slot + 1) * PART);
            }
            if (thread < KEYS) listed[slot * KEYS + thread] = later;
            __syncthreads();
        }
        copy_wait<0>();
        for (int half = 0; half < 2; half++) {
            const float sum = quad_sum(seen.sum[half]);
            if (query + 8 * half >= filled * wide) continue;
            element* to = out + ((long long)(at + row[half]) * heads + head + (query + 8 * half) % wide) * HEAD_DIM;
            for (int t = 0; t < TILES; t++)
                *(u32*)(to + t * 8 + (lane & 3) * 2) =
                    sum == 0.0f ? 0 : pair(seen.acc[t][2 * half] / sum, seen.acc[t][2 * half + 1] / sum);
        }
    }
}
#else
// A warp has a row and a head, a lane has a key at a time.
constexpr int WIDE = HEAD_DIM * sizeof(element) % 16 ? 1 : 16 / sizeof(element);
struct __align__(sizeof(element) * WIDE) Piece {
    element v[WIDE];
};

extern "C" __global__ void attend(const element* q, int q_stride, const element* k, const element* v, int stride,
                                  const element* pool_k, const element* pool_v, const int* keys, const int* first,
                                  const int* count, int heads, int kv_heads, float scale, int rows, int span,
                                  int spread, element* out) {
    begin();
    constexpr int each = (HEAD_DIM + 31) / 32;
    extern __shared__ float shared[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int head = blockIdx.y * (blockDim.x >> 5) + warp;
    const long long row = blockIdx.x;
    if (head >= heads) return;
    const Lists lists = {k, v, pool_k, pool_v, stride, kv_heads, head / (heads / kv_heads)};
    float* query = shared + warp * HEAD_DIM;
    for (int i = lane; i < HEAD_DIM; i += 32) query[i] = widen(q[row * q_stride + head * HEAD_DIM + i]) * scale;
    __syncwarp();

    float sum = 0.0f, most = -INFINITY_F, acc[each];
    for (int n = 0; n < each; n++) acc[n] = 0.0f;
    const int end = count[row], low = max(0, end - span);
    const int* list = keys + first[row];
    for (int start = low / 32 * 32; start < end; start += 32) {
        const int mine = start + lane;
        const bool sees = mine >= low && mine < end;
        const int key = sees ? list[mine] : 0;
        float score = -INFINITY_F;
        if (sees) {
            const Piece* at = (const Piece*)lists.at(key, false);
            score = 0.0f;
            for (int i = 0; i < HEAD_DIM / WIDE; i++) {
                const Piece piece = at[i];
                for (int n = 0; n < WIDE; n++) score += query[i * WIDE + n] * widen(piece.v[n]);
            }
        }
        const float higher = fmaxf(most, warp_max(score));
        const float kept = expf(most - higher);  // most is -inf at first: 0
        const float weight = sees ? expf(score - higher) : 0.0f;
        sum = sum * kept + warp_sum(weight);
        for (int n = 0; n < each; n++) acc[n] *= kept;
        for (int j = max(0, low - start); j < 32 && start + j < end; j++) {
            const element* at = lists.at(__shfl_sync(0xffffffffu, key, j), true);
            const float w = __shfl_sync(0xffffffffu, weight, j);
            for (int n = 0; n < each; n++) {
                const int i = lane + 32 * n;
                if (i < HEAD_DIM) acc[n] += w * widen(at[i]);
            }
        }
        most = higher;
    }
    for (int n = 0; n < each; n++) {
        const int i = lane + 32 * n;
        if (i < HEAD_DIM) out[(row * heads + head) * HEAD_DIM + i] = narrow(end ? acc[n] / sum : 0.0f);
    }
}
#endif
