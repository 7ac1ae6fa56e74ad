// Enough of CUDA's language for a host compiler to run our kernels as they are written: one thread a CUDA thread,
// blocks one after another, barriers where the kernel has them. Slow, and exact about order and exchange.
#pragma once
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n) alignas(n)

struct Dim {
    int x, y, z;
};
static thread_local Dim threadIdx, blockIdx;
static Dim blockDim;

static std::unique_ptr<std::barrier<>> the_block;
static std::vector<std::unique_ptr<std::barrier<>>> the_warps;
static unsigned long long exchanged[1024];
static std::vector<float> the_shared;

inline void __syncthreads() { the_block->arrive_and_wait(); }
inline void __syncwarp() { the_warps[threadIdx.x / 32]->arrive_and_wait(); }

template <class T> T exchange(T value, int from) {
    static_assert(sizeof(T) <= 8);
    std::memcpy(&exchanged[threadIdx.x], &value, sizeof(T));
    __syncwarp();
    T found;
    std::memcpy(&found, &exchanged[threadIdx.x / 32 * 32 + from], sizeof(T));
    __syncwarp();
    return found;
}
template <class T> T __shfl_xor_sync(unsigned, T value, int mask) { return exchange(value, (threadIdx.x % 32) ^ mask); }
template <class T> T __shfl_sync(unsigned, T value, int lane) { return exchange(value, lane); }

template <class T, class U> T atomicMin(T* at, U value) {
    T old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (T(value) < old && !__atomic_compare_exchange_n(at, &old, T(value), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return old;
}
template <class T, class U> T atomicMax(T* at, U value) {
    T old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (old < T(value) && !__atomic_compare_exchange_n(at, &old, T(value), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return old;
}

inline unsigned __float_as_uint(float v) {
    unsigned bits;
    std::memcpy(&bits, &v, 4);
    return bits;
}
inline float __uint_as_float(unsigned bits) {
    float v;
    std::memcpy(&v, &bits, 4);
    return v;
}
inline float __int_as_float(int bits) { return __uint_as_float((unsigned)bits); }
inline float rsqrtf(float v) { return 1.0f / std::sqrt(v); }
struct float4 {
    float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
using std::max;
using std::min;

template <class Body> void run_grid(int columns, int rows, int block, int shared, Body body) {
    blockDim = {block, 1, 1};
    the_shared.assign(shared / 4 + 1, 0.0f);
    for (int y = 0; y < rows; y++)
        for (int x = 0; x < columns; x++) {
            the_block = std::make_unique<std::barrier<>>(block);
            the_warps.clear();
            for (int warp = 0; warp < (block + 31) / 32; warp++)
                the_warps.push_back(std::make_unique<std::barrier<>>(std::min(32, block - 32 * warp)));
            std::vector<std::thread> threads;
            for (int t = 0; t < block; t++)
                threads.emplace_back([=] {
                    threadIdx = {t, 0, 0};
                    blockIdx = {x, y, 0};
                    body();
                    // A thread that returns early leaves the barriers to the others.
                    the_warps[t / 32]->arrive_and_drop();
                    the_block->arrive_and_drop();
                });
            for (auto& thread : threads) thread.join();
        }
}
