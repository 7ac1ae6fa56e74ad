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

// Programmatic dependent launch: this kernel may have been started before the one in front of it ended. Nothing may be
// read or written before `wait`; the kernel behind us may be started at once, and waits for us in the same way.
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

__device__ __forceinline__ float block_max(float v) {
    __shared__ float parts[32];
    const int warps = blockDim.x >> 5;
    v = warp_max(v);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = v;
    __syncthreads();
    float most = parts[0];
    for (int i = 1; i < warps; i++) most = fmaxf(most, parts[i]);
    return most;
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
