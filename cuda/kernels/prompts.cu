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
constexpr int STEPS = HEAD_DIM / 16, TILES = HEAD_DIM / 8;
constexpr int PITCH = HEAD_DIM + 8;  // of a row in shared memory: the eight rows that an instruction reads meet all banks
constexpr int PART = HEAD_DIM + 4;   // of a row of a warp's output
static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM");
static_assert(ROWS * PART * 4 <= 2 * KEYS * PITCH * 2, "a warp's output lies where its keys and values lay");

#ifndef PRELUDE_EMULATED
// d[16 rows][8] += a[16][16] . b[16][8]
__device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Four matrices of 8 rows of 16 bytes; lane l has the address of row l % 8 of matrix l / 8. Of matrix i a lane gets row
// l / 4, columns 2 (l % 4) and the next, in r[i]; `transposed`: column l / 4, rows 2 (l % 4) and the next.
__device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void load_transposed(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
#endif

__device__ __forceinline__ u32 pair(float low, float high) { return (u32)narrow(low) | (u32)narrow(high) << 16; }

// Over the four lanes that have a row of a fragment.
__device__ __forceinline__ float quad_max(float v) {
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
    return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}
__device__ __forceinline__ float quad_sum(float v) {
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

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

    const int upper = lane >> 2, lower = upper + 8, column = (lane & 3) * 2;
    u32 asked[STEPS][4];
#pragma unroll
    for (int s = 0; s < STEPS; s++)
        load_matrices(asked[s], queries + ((lane & 15) * PITCH + s * 16 + (lane >> 4) * 8) * 2);

    float acc[TILES][4], upper_most = -INFINITY_F, lower_most = -INFINITY_F, upper_sum = 0.0f, lower_sum = 0.0f;
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[t][i] = 0.0f;

    while (from <= last) {
        copy_wait<1>();
        __syncwarp();

        float scores[KEYS / 8][4];
#pragma unroll
        for (int t = 0; t < KEYS / 8; t++) {
#pragma unroll
            for (int i = 0; i < 4; i++) scores[t][i] = 0.0f;
#pragma unroll
            for (int s = 0; s < STEPS; s += 2) {
                u32 keys[4];  // of eight keys 32 values
                load_matrices(keys, own + ((t * 8 + (lane & 7)) * PITCH + s * 16 + (lane >> 3) * 8) * 2);
                mma(scores[t], asked[s], keys[0], keys[1]);
                mma(scores[t], asked[s + 1], keys[2], keys[3]);
            }
        }
        float upper_high = upper_most, lower_high = lower_most;
#pragma unroll
        for (int t = 0; t < KEYS / 8; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int key = from + t * 8 + column + (i & 1), row = i < 2 ? upper : lower;
                scores[t][i] = key <= first + row ? scores[t][i] * scale : -INFINITY_F;
                if (i < 2)
                    upper_high = fmaxf(upper_high, scores[t][i]);
                else
                    lower_high = fmaxf(lower_high, scores[t][i]);
            }
        upper_high = quad_max(upper_high);
        lower_high = quad_max(lower_high);
        // A row that has seen no key yet subtracts 0, so that its weights are 0 and not NaN.
        const float upper_zero = upper_high == -INFINITY_F ? 0.0f : upper_high;
        const float lower_zero = lower_high == -INFINITY_F ? 0.0f : lower_high;
        const float upper_kept = exp2f(upper_most - upper_zero), lower_kept = exp2f(lower_most - lower_zero);
        upper_most = upper_high;
        lower_most = lower_high;
        upper_sum *= upper_kept;
        lower_sum *= lower_kept;
#pragma unroll
        for (int t = 0; t < KEYS / 8; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                scores[t][i] = exp2f(scores[t][i] - (i < 2 ? upper_zero : lower_zero));
                if (i < 2)
                    upper_sum += scores[t][i];
                else
                    lower_sum += scores[t][i];
            }
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            acc[t][0] *= upper_kept;
            acc[t][1] *= upper_kept;
            acc[t][2] *= lower_kept;
            acc[t][3] *= lower_kept;
        }
        copy_wait<0>();
        __syncwarp();
#pragma unroll
        for (int s = 0; s < KEYS / 16; s++) {
            const u32 weights[4] = {
                pair(scores[2 * s][0], scores[2 * s][1]), pair(scores[2 * s][2], scores[2 * s][3]),
                pair(scores[2 * s + 1][0], scores[2 * s + 1][1]), pair(scores[2 * s + 1][2], scores[2 * s + 1][3])};
#pragma unroll
            for (int t = 0; t < TILES; t += 2) {
                u32 values[4];  // of 16 keys 16 values
                load_transposed(values, own + ((KEYS + s * 16 + (lane & 15)) * PITCH + t * 8 + (lane >> 4) * 8) * 2);
                mma(acc[t], weights, values[0], values[1]);
                mma(acc[t + 1], weights, values[2], values[3]);
            }
        }
        from += WARPS * KEYS;
        __syncwarp();  // every lane has read the keys and values
        if (from <= last) request(from);
    }
    upper_sum = quad_sum(upper_sum);
    lower_sum = quad_sum(lower_sum);
    if ((lane & 3) == 0) {
        most_of[warp * ROWS + upper] = upper_most;
        most_of[warp * ROWS + lower] = lower_most;
        sum_of[warp * ROWS + upper] = upper_sum;
        sum_of[warp * ROWS + lower] = lower_sum;
    }
    __syncwarp();  // every lane has read the values: the warp's output takes their place
    float* mine = shared + warp * KEYS * PITCH;
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        *(float2*)(mine + upper * PART + t * 8 + column) = make_float2(acc[t][0], acc[t][1]);
        *(float2*)(mine + lower * PART + t * 8 + column) = make_float2(acc[t][2], acc[t][3]);
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
