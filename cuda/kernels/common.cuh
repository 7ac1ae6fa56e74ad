// Shared by all kernels; put in front of each source by compiler.py. No header is included: NVRTC needs no toolkit.
//
// Determinism: every sum has an order that depends on the row's own width alone. A row's numbers therefore do not
// depend on which other rows are in the launch.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

#define INFINITY_F __int_as_float(0x7f800000)

#ifdef PRELUDE_FLOAT32
typedef float element;
struct __align__(16) element4 {
    float x, y, z, w;
};
__device__ __forceinline__ float widen(element v) { return v; }
__device__ __forceinline__ element narrow(float v) { return v; }
#else
typedef u16 element;  // the bits of a bfloat16
struct __align__(8) element4 {
    u16 x, y, z, w;
};
__device__ __forceinline__ float widen(element v) { return __uint_as_float((u32)v << 16); }
__device__ __forceinline__ element narrow(float v) {
#ifdef __CUDA_ARCH__
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(v));
    return bits;
#else  // a compiler without a GPU behind it, in tests: to nearest, ties to even
    const u32 bits = __float_as_uint(v);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}
#endif

// Values that a thread moves at a time: 16 bytes of bfloat16.
struct __align__(16) Eight {
    element v[8];
};

// Programmatic dependent launch: this kernel may have been started before the one in front of it ended. Before
// `wait` nothing may be written, and nothing read that a kernel of the step writes; the kernel behind us may be started at once, and waits for us in the same way.
__device__ __forceinline__ void begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

template <class T> __device__ __forceinline__ T warp_sum(T v) {
    for (int step = 16; step; step >>= 1) v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

__device__ __forceinline__ float warp_max(float v) {
    for (int step = 16; step; step >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, step));
    return v;
}

// The sum over a block of whole warps, in every thread. Calls must not diverge.
template <class T> __device__ __forceinline__ T block_sum(T v) {
    __shared__ T parts[32];
    const int warps = blockDim.x >> 5;
    v = warp_sum(v);
    __syncthreads();  // an earlier sum's readers are done
    if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = v;
    __syncthreads();
    T total = 0;
    for (int i = 0; i < warps; i++) total += parts[i];
    return total;
}

// A float as an unsigned that sorts the same way; -0 and +0 are one value, as they are for a comparison.
__device__ __forceinline__ u32 ordered(float v) {
    const u32 bits = __float_as_uint(v == 0.0f ? 0.0f : v);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float unordered(u32 key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// Blocks of one cluster reach each other's dynamic shared memory. Before compute capability 9.0 a block is a cluster
// of its own. A kernel of clusters declares no static shared memory: the emulator has one copy of it for all blocks.
#ifndef PRELUDE_EMULATED
__device__ __forceinline__ int cluster_size() {
    u32 count = 1;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
#endif
    return (int)count;
}

__device__ __forceinline__ int cluster_rank() {
    u32 rank = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return (int)rank;
}

// Every thread of every block of the cluster; writes before it are visible behind it.
__device__ __forceinline__ void cluster_sync() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();
#endif
}

// Where `at`, in this block's shared memory, lies in the shared memory of block `rank` of the cluster.
template <class T> __device__ __forceinline__ T* peer(T* at, int rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    u64 there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(at), "r"(rank));
    return (T*)there;
#else
    return at;
#endif
}
#endif

// Copies to shared memory that go on beside the thread (from compute capability 8.0).
#ifndef PRELUDE_EMULATED
__device__ __forceinline__ u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

// 16 bytes to shared memory; zeros where not `there`.
__device__ __forceinline__ void copy_async(u32 to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
#endif

#if !defined(PRELUDE_FLOAT32) && HEAD_DIM % 16 == 0
#define PRELUDE_FRAGMENTS
// Attention by tensor cores (mma, from compute capability 8.0): a warp has 16 queries. Rows of a head lie in shared
// memory PITCH values apart: the eight rows that an instruction reads meet all banks.
enum { TILES = HEAD_DIM / 8, PITCH = HEAD_DIM + 8 };

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

// scores[key / 8] = 16 queries . KEYS keys, from shared memory.
template <int KEYS> __device__ __forceinline__ void multiply(float (&scores)[KEYS / 8][4], u32 queries, u32 keys) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int t = 0; t < KEYS / 8; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) scores[t][i] = 0.0f;
#pragma unroll
    for (int s = 0; s < HEAD_DIM; s += 16) {
        u32 asked[4];
        load_matrices(asked, queries + ((lane & 15) * PITCH + s + (lane >> 4) * 8) * 2);
#pragma unroll
        for (int t = 0; t < KEYS / 8; t += 2) {
            u32 held[4];  // of 16 keys 16 values
            const int key = t * 8 + (lane >> 4) * 8 + (lane & 7);
            load_matrices(held, keys + (key * PITCH + s + (lane >> 3 & 1) * 8) * 2);
            mma(scores[t], asked, held[0], held[1]);
            mma(scores[t + 1], asked, held[2], held[3]);
        }
    }
}

// Of 16 queries, after some keys: the largest score, the sum of weights and that of weighted values. A lane has the
// queries lane / 4 and 8 more, and of the sum of weights a part.
struct Attending {
    float acc[TILES][4], most[2], sum[2];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) acc[t][i] = 0.0f;
        most[0] = most[1] = -INFINITY_F;
        sum[0] = sum[1] = 0.0f;
    }

    // Scores become weights. `sees(key, half)`: whether a lane's query sees one of the KEYS keys. `scale` is for a
    // base of 2.
    template <int KEYS, class Sees>
    __device__ __forceinline__ void weigh(float (&scores)[KEYS / 8][4], float scale, const Sees& sees) {
        const int column = (threadIdx.x & 3) * 2;
        float high[2] = {most[0], most[1]}, base[2];
#pragma unroll
        for (int t = 0; t < KEYS / 8; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                scores[t][i] = sees(t * 8 + column + (i & 1), i >> 1) ? scores[t][i] * scale : -INFINITY_F;
                high[i >> 1] = fmaxf(high[i >> 1], scores[t][i]);
            }
        float kept[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            high[half] = quad_max(high[half]);
            // A row that has seen no key yet subtracts 0, so that its weights are 0 and not NaN.
            base[half] = high[half] == -INFINITY_F ? 0.0f : high[half];
            kept[half] = exp2f(most[half] - base[half]);
            most[half] = high[half];
            sum[half] *= kept[half];
        }
#pragma unroll
        for (int t = 0; t < KEYS / 8; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                scores[t][i] = exp2f(scores[t][i] - base[i >> 1]);
                sum[i >> 1] += scores[t][i];
            }
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) acc[t][i] *= kept[i >> 1];
    }

    // The weighted values, from shared memory.
    template <int KEYS> __device__ __forceinline__ void add(const float (&weights)[KEYS / 8][4], u32 values) {
        const int lane = threadIdx.x & 31;
#pragma unroll
        for (int s = 0; s < KEYS / 16; s++) {
            const u32 left[4] = {
                pair(weights[2 * s][0], weights[2 * s][1]), pair(weights[2 * s][2], weights[2 * s][3]),
                pair(weights[2 * s + 1][0], weights[2 * s + 1][1]), pair(weights[2 * s + 1][2], weights[2 * s + 1][3])};
#pragma unroll
            for (int t = 0; t < TILES; t += 2) {
                u32 right[4];  // of 16 keys 16 values
                load_transposed(right, values + ((s * 16 + (lane & 15)) * PITCH + t * 8 + (lane >> 4) * 8) * 2);
                mma(acc[t], left, right[0], right[1]);
                mma(acc[t + 1], left, right[2], right[3]);
            }
        }
    }
};
#endif
