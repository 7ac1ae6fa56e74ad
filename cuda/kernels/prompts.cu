// Causal attention of whole prompts by tensor cores (mma, from compute capability 8.0), for bfloat16 and heads of 64 or
// 128 values: a step's prompts stand one behind the other and attend to nothing else.
//
//     row r of prompt p, starts[p] <= r < starts[p + 1], reads tokens starts[p] .. r
//
// A block has 16 rows of one prompt and one query head, so a prompt of 128 rows and 16 heads has 128 blocks. Its WARPS
// warps share the keys: of every WARPS * 32 keys a warp takes 32, copies them to a place of its own in shared memory,
// and keeps its own largest score, sum and output. The warps' results are joined in their order at the end. A block
// reads no row of another prompt: the weight of a masked key is 0, and 0 times a value that is not finite is NaN. So
// the bits of a row depend on its prompt alone. Rows behind the last prompt are not written.
//
// Tile t of prompt p is block (starts[p] + 15 p) / 16 + t. A prompt of n rows has (n + 15) / 16 tiles, and the next
// prompt begins as many blocks later or more: no two tiles share a block. Of a lone prompt every block has a tile.

constexpr int ROWS = 16, KEYS = 32, WARPS = 4;  // of a tile; of a warp's turn; of a block
constexpr int PART = HEAD_DIM + 4;   // of a row of a warp's output
static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM");
static_assert(ROWS * PART * 4 <= 2 * KEYS * PITCH * 2, "a warp's output lies where its keys and values lay");

// `count` rows of a head by one warp, those that are not `there` as zeros.
__device__ __forceinline__ void copy_rows(u32 to, const element* from, int stride, int count, int there) {
    constexpr int pieces = HEAD_DIM / 8;
    for (int i = threadIdx.x & 31; i < count * pieces; i += 32) {
        const int row = i / pieces, piece = i % pieces;
        copy_async(to + (row * PITCH + piece * 8) * 2, from + (long long)(row < there ? row : 0) * stride + piece * 8,
                   row < there);
    }
}

// q [rows][heads][HEAD_DIM], rows `q_stride` values apart; k and v [rows][kv heads][HEAD_DIM], `stride` apart; `scale`
// with log2(e) in it. Grid: (rows + 15 prompts) / 16, query heads. Dynamic shared memory: SHARED bytes.
// Two blocks on a multiprocessor: left to itself, the compiler takes registers for three, and spills.
extern "C" __global__ void __launch_bounds__(WARPS * 32, 2)
    attend_prompts(const element* q, int q_stride, const element* k, const element* v, int stride, const int* starts,
                   int prompts, int rows, int group, float scale, element* out, int out_stride) {
    extern __shared__ float shared[];
    const u32 base = shared_address(shared);
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int head = blockIdx.y, kv = head / group;
    // A warp's keys and values, one place behind the other; behind all of them the queries, and the tile's place.
    const u32 own = base + warp * 2 * KEYS * PITCH * 2, queries = base + WARPS * 2 * KEYS * PITCH * 2;
    int* place = (int*)((char*)shared + WARPS * 2 * KEYS * PITCH * 2 + ROWS * PITCH * 2);
    float* most_of = (float*)(place + 4);  // [warp][row]
    float* sum_of = most_of + WARPS * ROWS;

    if (threadIdx.x == 0) place[0] = -1;
    begin();
    __syncthreads();
    for (int p = threadIdx.x; p < prompts; p += WARPS * 32) {
        const int from = starts[p], to = min(starts[p + 1], rows);
        const int tile = (int)blockIdx.x - (from + (ROWS - 1) * p) / ROWS;
        if (tile >= 0 && from + tile * ROWS < to) {
            place[0] = from;
            place[1] = from + tile * ROWS;
            place[2] = to;
        }
    }
    __syncthreads();
    if (place[0] < 0) return;  // the whole block
    const int lowest = place[0], first = place[1];
    const int filled = min(ROWS, place[2] - first), last = first + filled - 1;  // of the tile's rows

    const auto request = [&](int from) {  // a turn's keys, then its values
        const long long at = (long long)from * stride + kv * HEAD_DIM;
        const int there = min(KEYS, last + 1 - from);
        copy_rows(own, k + at, stride, KEYS, there);
        copy_commit();
        copy_rows(own + KEYS * PITCH * 2, v + at, stride, KEYS, there);
        copy_commit();
    };
    if (warp == 0) copy_rows(queries, q + (long long)first * q_stride + head * HEAD_DIM, q_stride, ROWS, filled);
    copy_commit();
    int from = lowest + warp * KEYS;
    if (from <= last) request(from);  // the first warp always has keys: its queries are two commits behind
    copy_wait<2>();
    __syncthreads();

    const int upper = lane >> 2, column = (lane & 3) * 2;
    Attending seen;
    seen.clear();
    while (from <= last) {
        copy_wait<1>();
        __syncwarp();
        float scores[KEYS / 8][4];
        multiply<KEYS>(scores, queries, own);
        seen.weigh<KEYS>(scores, scale, [&](int key, int half) { return from + key <= first + upper + 8 * half; });
        copy_wait<0>();
        __syncwarp();
        seen.add<KEYS>(scores, own + KEYS * PITCH * 2);
        from += WARPS * KEYS;
        __syncwarp();  // every lane has read the keys and values
        if (from <= last) request(from);
    }
    for (int half = 0; half < 2; half++) {
        const float sum = quad_sum(seen.sum[half]);
        if ((lane & 3) == 0) {
            most_of[warp * ROWS + upper + 8 * half] = seen.most[half];
            sum_of[warp * ROWS + upper + 8 * half] = sum;
        }
    }
    __syncwarp();  // every lane has read the values: the warp's output takes their place
    float* mine = shared + warp * KEYS * PITCH;
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        for (int half = 0; half < 2; half++)
            *(float2*)(mine + (upper + 8 * half) * PART + t * 8 + column) =
                make_float2(seen.acc[t][2 * half], seen.acc[t][2 * half + 1]);
    }
    __syncthreads();

    for (int i = threadIdx.x; i < ROWS * HEAD_DIM / 4; i += WARPS * 32) {
        const int row = i / (HEAD_DIM / 4), from = i % (HEAD_DIM / 4) * 4;
        if (row >= filled) continue;
        float most = most_of[row], sum = 0.0f;
        for (int w = 1; w < WARPS; w++) most = fmaxf(most, most_of[w * ROWS + row]);
        float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (int w = 0; w < WARPS; w++) {
            const float share = exp2f(most_of[w * ROWS + row] - most);
            const float4 part = *(const float4*)(shared + w * KEYS * PITCH + row * PART + from);
            sum += sum_of[w * ROWS + row] * share;
            total.x += part.x * share;
            total.y += part.y * share;
            total.z += part.z * share;
            total.w += part.w * share;
        }
        element4 done;
        done.x = narrow(total.x / sum);
        done.y = narrow(total.y / sum);
        done.z = narrow(total.z / sum);
        done.w = narrow(total.w / sum);
        *(element4*)(out + (long long)(first + row) * out_stride + head * HEAD_DIM + from) = done;
    }
}
