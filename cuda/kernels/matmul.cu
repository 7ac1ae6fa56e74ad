// Matrix products of up to ROWS rows for compute capability 9.0a, with a layer's next operation done on the sums.
//
//     sum[r][n] = x[r][0..inner) . weight[n][0..inner)        bfloat16 in, float32 sums; inner is a multiple of 64
//
//     NARROW   out[r][n] = sum                                bfloat16
//     WIDE     wide[r][n] = sum                               float32
//     ADD      wide[r][n] += sum                              the residual stream
//     NORM     wide[r][n] += sum, out[r][n] = wide[r][n] * gain[n], squares[r][tile] = sums of wide[r][n]^2 by tile
//     GATE     out[r][i] = silu(sum[r][i]) * sum[r][outputs / 2 + i]
//     HEADS    out[r][n] = sum, then as qk_rope in heads.cu has it: a tile is one head
//
// An RMSNorm between two products is no kernel of its own. NORM leaves out the factor of a row, which is known only when
// all tiles are done, and the product that reads `out` multiplies its sums by it:
//
//     sum[r][n] *= 1 / sqrt((row_squares[r][0] + ... + row_squares[r][row_parts - 1]) / inner + row_eps)
//
// So few rows are bound by the weights' way from memory. A block has TILE outputs and, with the blocks of its cluster, a
// part of `inner` each. Its stages of 64 columns run through a ring in shared memory: before the dependent launch's
// wait it asks for the weights of all stages but one, for no kernel writes weights; behind it for the rows of x.
// With SHARE above 1, SHARE tiles side by side are in one cluster and read the rows of x once: each of them asks the
// tensor memory accelerator for a part of a stage's rows, which arrives in all of them. A barrier of each stage, `full`,
// counts the bytes that have arrived; another one, `empty`, the tiles that have multiplied by the rows before.
// wgmma multiplies 64 outputs by CHUNK rows from shared memory, weights as its A and x as its B, so any number of rows
// is one instruction wide. The cluster's partial sums are added in rank order, by each block for its share of rows: a
// row's bits depend on ROWS, GROUPS and the cluster, not on the other rows.

constexpr int TILE = 64 * GROUPS;  // outputs of a block; a warpgroup has 64
constexpr int THREADS = 128 * GROUPS;
constexpr int CHUNK = ROWS < 64 ? ROWS : 64;  // rows of one wgmma
constexpr int CHUNKS = ROWS / CHUNK;
constexpr int STEP = 64;                        // columns of a stage: 128 bytes a row, the period of the swizzle
constexpr int STAGE = (TILE + ROWS) * STEP * 2;  // bytes
constexpr int STAGES = RING / STAGE;
constexpr int PART = ROWS / SHARE;  // rows that a tile asks for
constexpr int PITCH = TILE + 4;     // of a row of sums: a warp's fragment meets every bank once
static_assert(SHARE == 1 || PART % 8 == 0, "the swizzle has a period of eight rows");
static_assert(ROWS % CHUNK == 0 && CHUNK % 16 == 0 && STAGES >= 3 && ROWS * PITCH * 4 <= RING, "ROWS, GROUPS, RING");

enum { NARROW, WIDE, ADD, GATE, HEADS, NORM };

#ifndef PRELUDE_EMULATED
// Behind this thread's writes to shared memory, before a barrier: wgmma reads through another proxy.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

// A matrix in memory, as cuTensorMapEncodeTiled describes it: boxes of PART rows of 64 columns, swizzled by 128 bytes.
struct __align__(64) TensorMap {
    u64 opaque[16];
};

// Barriers in shared memory. A phase ends when all have arrived and all expected bytes have landed.
__device__ __forceinline__ void barrier_init(u32 barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// Behind the initialization, before a barrier of the cluster.
__device__ __forceinline__ void barrier_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void barrier_expect(u32 barrier, int bytes) {  // and arrive
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 barrier, int rank) {  // at that of another block
    asm volatile(
        "{\n.reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
        "r"(rank)
        : "memory");
}
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    u32 done;
    do {
        asm volatile(
            "{\n.reg .pred done;\n"
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%1], %2;\n"
            "selp.u32 %0, 1, 0, done;\n}"
            : "=r"(done)
            : "r"(barrier), "r"(parity)
            : "memory");
    } while (!done);
}
// A box to `to` in every block of `mask`; each block's `barrier` counts its bytes. Rows behind the last are zeros.
__device__ __forceinline__ void load_box(u32 to, const TensorMap& map, u32 barrier, int column, int row, u16 mask) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%3, %4}], [%2], %5;" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(column), "r"(row), "h"(mask)
        : "memory");
}

#define FOUR(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SIXTEEN(d, i) FOUR(d, i), FOUR(d, i + 4), FOUR(d, i + 8), FOUR(d, i + 12)

// d[64 outputs][N rows] += a[64][16] . b[N][16], both with their columns side by side, by a warpgroup.
__device__ __forceinline__ void wgmma(float (&d)[8], u64 a, u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, 1, 1, 1, 0, 0;"
        : FOUR(d, 0), FOUR(d, 4)
        : "l"(a), "l"(b));
}
__device__ __forceinline__ void wgmma(float (&d)[16], u64 a, u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
        "%16, %17, 1, 1, 1, 0, 0;"
        : SIXTEEN(d, 0)
        : "l"(a), "l"(b));
}
__device__ __forceinline__ void wgmma(float (&d)[32], u64 a, u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, 1, 1, 1, 0, 0;"
        : SIXTEEN(d, 0), SIXTEEN(d, 16)
        : "l"(a), "l"(b));
}
#endif

// A matrix in shared memory whose rows are 128 bytes, swizzled by 128 bytes: groups of 8 rows lie 1,024 bytes apart.
__device__ __forceinline__ u64 matrix_at(u32 address) {
    return (u64)((address & 0x3ffff) >> 4) | 1ull << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}

struct Operands {
    const element* x;
    const element* weight;
    int x_stride, rows, outputs, inner;
    bool gate;

    // The weights' row behind row i of tile t. A tile of GATE has outputs of both halves.
    __device__ __forceinline__ int output(int t, int i) const {
        if (!gate) return t * TILE + i;
        return i < TILE / 2 ? t * (TILE / 2) + i : outputs / 2 + t * (TILE / 2) + i - TILE / 2;
    }
};

// `count` rows of 64 columns, one under the other; a thread always has the same sixteen bytes of a row.
template <class Source> __device__ __forceinline__ void load(u32 to, int count, Source source) {
    const int piece = threadIdx.x & 7;
    for (int row = threadIdx.x >> 3; row < count; row += THREADS / 8) {
        bool there;
        const element* from = source(row, there);
        copy_async(to + row * 128 + ((piece ^ (row & 7)) << 4), from + piece * 8, there);
    }
}

__device__ __forceinline__ void load_weights(const Operands& in, u32 stage, int tile, int column) {
    load(stage, TILE, [&](int row, bool& there) {
        const int output = in.output(tile, row);
        there = output < in.outputs;
        return in.weight + (long long)(there ? output : 0) * in.inner + column;
    });
}

__device__ __forceinline__ void load_rows(const Operands& in, u32 stage, int column) {
    load(stage + TILE * STEP * 2, ROWS, [&](int row, bool& there) {
        there = row < in.rows;
        return in.x + (long long)(there ? row : 0) * in.x_stride + column;
    });
}

__device__ __forceinline__ void store4(element* to, float4 v) {
    element4 out;
    out.x = narrow(v.x);
    out.y = narrow(v.y);
    out.z = narrow(v.z);
    out.w = narrow(v.w);
    *(element4*)to = out;
}

__device__ __forceinline__ float4 plus(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Four sums of a row over the blocks of a tile, in rank order; `first` is the rank of the first one.
__device__ __forceinline__ float4 summed(float* sums, int first, int blocks, int row, int column) {
    float* at = sums + row * PITCH + column;
    float4 total = *(const float4*)peer(at, first);
    for (int part = 1; part < blocks; part++) total = plus(total, *(const float4*)peer(at, first + part * SHARE));
    return total;
}

#if SHARE > 1
// The rows of x of this block's part of `inner`, for the SHARE tiles that have the same part. One thread issues.
struct SharedRows {
    const TensorMap& map;
    u32 ring, full, empty;
    int first;   // of the tiles' ranks
    int member;  // this tile among them

    __device__ __forceinline__ void make_barriers() const {
        if (threadIdx.x == 0) {
            for (int s = 0; s < STAGES; s++) {
                barrier_init(full + 8 * s, 1);
                barrier_init(empty + 8 * s, SHARE);
            }
            barrier_fence();
        }
        cluster_sync();
    }
    // This tile's share of step s, for all tiles.
    __device__ __forceinline__ void request(int s, int column) const {
        const int stage = s % STAGES;
        barrier_expect(full + 8 * stage, ROWS * STEP * 2);
        load_box(ring + stage * STAGE + (TILE + member * PART) * STEP * 2, map, full + 8 * stage, column, member * PART,
                 (u16)(((1 << SHARE) - 1) << first));
    }
    // Of a step whose stage all tiles have left.
    __device__ __forceinline__ void request_again(int s, int column) const {
        barrier_wait(empty + 8 * (s % STAGES), (s / STAGES - 1) & 1);
        request(s, column);
    }
    __device__ __forceinline__ void release(int s) const {
        for (int other = 0; other < SHARE; other++) barrier_arrive(empty + 8 * (s % STAGES), first + other);
    }
    __device__ __forceinline__ void wait(int s) const { barrier_wait(full + 8 * (s % STAGES), s / STAGES & 1); }
};
#endif

struct Heads {
    int queries, keys, values;
    const int* positions;
    const float* rope_table;
    const float* q_gain;
    const float* k_gain;
    float eps;
    const int* slots;
    element* pool_k;
    element* pool_v;
};

// A head's row by TILE / 4 lanes of a warp, four values each: those of the two halves of the lanes turn together.
__device__ __forceinline__ void store_head(const Heads& heads, element* out, int row, int head, float4 own,
                                           bool there) {
    constexpr int half = TILE / 2, lanes = TILE / 4;
    const int lane = threadIdx.x & (lanes - 1), pair = lane & (lanes / 2 - 1);
    const int slot = heads.slots ? heads.slots[row] : -1;
    element* kept = 0;
    if (head < heads.queries + heads.keys) {
        const float* gain = head < heads.queries ? heads.q_gain : heads.k_gain;
        if (gain) {
            float squares = own.x * own.x + own.y * own.y + own.z * own.z + own.w * own.w;
            for (int step = lanes / 2; step; step >>= 1) squares += __shfl_xor_sync(0xffffffffu, squares, step);
            const float scale = rsqrtf(squares / (float)TILE + heads.eps);
            const float4 g = ((const float4*)gain)[lane];
            own.x *= scale * g.x;
            own.y *= scale * g.y;
            own.z *= scale * g.z;
            own.w *= scale * g.w;
        }
        float4 other;
        other.x = __shfl_xor_sync(0xffffffffu, own.x, lanes / 2);
        other.y = __shfl_xor_sync(0xffffffffu, own.y, lanes / 2);
        other.z = __shfl_xor_sync(0xffffffffu, own.z, lanes / 2);
        other.w = __shfl_xor_sync(0xffffffffu, own.w, lanes / 2);
        const float* rotation = heads.rope_table + (long long)heads.positions[row] * TILE;
        const float4 cosine = ((const float4*)rotation)[pair], sine = ((const float4*)(rotation + half))[pair];
        const float sign = lane < lanes / 2 ? -1.0f : 1.0f;
        own.x = own.x * cosine.x + sign * other.x * sine.x;
        own.y = own.y * cosine.y + sign * other.y * sine.y;
        own.z = own.z * cosine.z + sign * other.z * sine.z;
        own.w = own.w * cosine.w + sign * other.w * sine.w;
        if (head >= heads.queries && slot >= 0)
            kept = heads.pool_k + ((long long)slot * heads.keys + head - heads.queries) * TILE;
    } else if (slot >= 0) {
        kept = heads.pool_v + ((long long)slot * heads.values + head - heads.queries - heads.keys) * TILE;
    }
    if (there) store4(out + 4 * lane, own);
    if (there && kept) store4(kept + 4 * lane, own);
}

__device__ __forceinline__ float4 times(float4 v, float factor) {
    return make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
}

// A row's factor out of the sums of squares of its parts.
__device__ __forceinline__ float row_factor(const float* squares, int parts, int width, float eps) {
    float total = 0.0f;
    for (int i = 0; i < parts; i++) total += squares[i];
    return rsqrtf(total / (float)width + eps);
}

struct Norm {
    const float* gain;
    float* squares;
    int parts;  // tiles
};

// Four values of the residual stream by each of TILE / 4 lanes of a warp, which have one row.
__device__ __forceinline__ void store_norm(const Norm& norm, element* out, float* wide, int row, int tile, int column,
                                           float4 added, bool row_there, bool there) {
    float squares = 0.0f;
    if (there) {
        const float4 v = plus(*(const float4*)wide, added), g = *(const float4*)(norm.gain + tile * TILE + column);
        *(float4*)wide = v;
        store4(out, make_float4(v.x * g.x, v.y * g.y, v.z * g.z, v.w * g.w));
        squares = v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    for (int step = TILE / 8; step; step >>= 1) squares += __shfl_xor_sync(0xffffffffu, squares, step);
    if (row_there && column == 0) norm.squares[(long long)row * norm.parts + tile] = squares;
}

__device__ __forceinline__ float gated(float gate, float up) { return gate / (1.0f + expf(-gate)) * up; }

// One cluster for SHARE tiles: of its blocks, each SHARE in a row have the same part of `inner`. Dynamic shared memory:
// the ring, room to align it, a factor for each row, and two barriers for each stage where rows are shared.
extern "C" __global__ void __launch_bounds__(THREADS)
    product(int mode, const element* x, int x_stride, const element* weight, int rows, int outputs, int inner,
           element* out, float* wide, int out_stride, const float* gain, float* squares, const float* row_squares,
           int row_parts, float row_eps, int queries, int keys, int values, const int* positions,
           const float* rope_table, const float* q_gain, const float* k_gain, float eps, const int* slots,
           element* pool_k, element* pool_v
#if SHARE > 1
           ,
           const __grid_constant__ TensorMap map
#endif
    ) {
    extern __shared__ float shared[];
    const Operands in = {x, weight, x_stride, rows, outputs, inner, mode == GATE};
    const int blocks = cluster_size() / SHARE, member = cluster_rank() % SHARE, rank = cluster_rank() / SHARE;
    const int tile = blockIdx.x / (SHARE * blocks) * SHARE + member;
    const int begins = inner / STEP * rank / blocks, steps = inner / STEP * (rank + 1) / blocks - begins;
    const u32 spare = (1024 - (shared_address(shared) & 1023)) & 1023;
    const u32 ring = shared_address(shared) + spare;
    float* sums = shared + spare / 4;
    float* factors = sums + RING / 4;  // of this block's share of rows
    const int share = (rows + blocks - 1) / blocks, first = rank * share, last = min(first + share, rows);

    for (int s = 0; s < STAGES - 1 && s < steps; s++) load_weights(in, ring + s * STAGE, tile, (begins + s) * STEP);
#if SHARE > 1
    const u32 barriers = ring + RING + ROWS * 4;
    const SharedRows shared_rows = {map, ring, barriers, barriers + 8 * STAGES, rank * SHARE, member};
    shared_rows.make_barriers();
#endif
    begin();
    for (int s = 0; s < STAGES - 1; s++) {
#if SHARE > 1
        if (s < steps && threadIdx.x == 0) shared_rows.request(s, (begins + s) * STEP);
#else
        if (s < steps) load_rows(in, ring + s * STAGE, (begins + s) * STEP);
#endif
        copy_commit();
    }
    for (int row = first + (int)threadIdx.x; row < last; row += THREADS)  // read behind the barriers of the sums
        factors[row - first] =
            row_squares ? row_factor(row_squares + (long long)row * row_parts, row_parts, inner, row_eps) : 1.0f;
    float acc[CHUNKS][CHUNK / 2];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int i = 0; i < CHUNK / 2; i++) acc[c][i] = 0.0f;

    const int group = threadIdx.x >> 7;
    for (int s = 0; s < steps; s++) {
#if SHARE > 1
        shared_rows.wait(s);
#endif
        copy_wait<STAGES - 2>();
        wgmma_wait();  // of the step before: its stage is free behind the barrier
        fence_async();
        __syncthreads();
        const u32 stage = ring + s % STAGES * STAGE;
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < STEP / 16; k++)
#pragma unroll
            for (int c = 0; c < CHUNKS; c++)
                wgmma(acc[c], matrix_at(stage + group * 64 * 128 + k * 32),
                      matrix_at(stage + (TILE + c * CHUNK) * 128 + k * 32));
        wgmma_commit();
        const int next = s + STAGES - 1;
        if (next < steps) {
            const u32 free = ring + next % STAGES * STAGE;
            load_weights(in, free, tile, (begins + next) * STEP);
#if SHARE > 1
            if (threadIdx.x == 0) {
                if (s > 0) shared_rows.release(s - 1);
                if (s > 0)
                    shared_rows.request_again(next, (begins + next) * STEP);
                else
                    shared_rows.request(next, (begins + next) * STEP);
            }
            __syncwarp();  // wgmma wants the warp together
#else
            load_rows(in, free, (begins + next) * STEP);
#endif
        }
        copy_commit();  // an empty group too: the wait counts groups
    }
    wgmma_wait();
    copy_wait<0>();
    __syncthreads();  // the ring is free, and holds sums from here on

    const int lane = threadIdx.x & 31;
    const int output = group * 64 + (threadIdx.x >> 5 & 3) * 16 + (lane >> 2);
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int i = 0; i < CHUNK / 2; i++) {
            const int row = c * CHUNK + i / 4 * 8 + (lane & 3) * 2 + (i & 1);
            sums[row * PITCH + output + (i & 2) * 4] = acc[c][i];
        }
    cluster_sync();

    constexpr int quads = TILE / 4;
    const int column = threadIdx.x % quads * 4;
    const Heads heads = {queries, keys, values, positions, rope_table, q_gain, k_gain, eps, slots, pool_k, pool_v};
    if (mode == GATE) {
        constexpr int pairs = quads / 2;
        const int from = threadIdx.x % pairs * 4, to = tile * (TILE / 2) + from;
        for (int row = first + threadIdx.x / pairs; row < last && to < outputs / 2; row += THREADS / pairs) {
            const float factor = factors[row - first];
            const float4 g = times(summed(sums, member, blocks, row, from), factor);
            const float4 u = times(summed(sums, member, blocks, row, TILE / 2 + from), factor);
            const float4 v = make_float4(gated(g.x, u.x), gated(g.y, u.y), gated(g.z, u.z), gated(g.w, u.w));
            store4(out + (long long)row * out_stride + to, v);
        }
    } else {
        // The block stays together: HEADS and NORM exchange within a row.
        const Norm norm = {gain, squares, (outputs + TILE - 1) / TILE};
        for (int base = first; base < last; base += THREADS / quads) {
            const int row = min(base + (int)threadIdx.x / quads, last - 1);
            const bool row_there = base + (int)threadIdx.x / quads < last;
            const bool own = row_there && tile * TILE + column < outputs;
            const float4 v = times(summed(sums, member, blocks, row, column), factors[row - first]);
            const long long at = (long long)row * out_stride + tile * TILE + column;
            if (mode == HEADS)
                store_head(heads, out + (at - column), row, tile, v, own);
            else if (mode == NORM)
                store_norm(norm, out + at, wide + at, row, tile, column, v, row_there, own);
            else if (own && mode == NARROW)
                store4(out + at, v);
            else if (own)
                *(float4*)(wide + at) = mode == ADD ? plus(*(const float4*)(wide + at), v) : v;
        }
    }
    cluster_sync();  // no block leaves while another may read its sums
}
