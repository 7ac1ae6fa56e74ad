// Enough of CUDA's language for a host compiler to run our kernels as they are written. Each CUDA thread is a fiber:
// it runs until a barrier, then another one does, first to last in one round and last to first in the next; of a cluster
// some rounds run block after block, and others thread after thread of all blocks. Slow, and
// exact about order and exchange. A barrier that not all threads reach ends the process with a message.
#pragma once
#define PRELUDE_EMULATED
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n) alignas(n)
#define __launch_bounds__(...)

struct Dim {
  int x, y, z;
};
static Dim threadIdx, blockIdx;  // of the fiber that runs
static Dim blockDim, gridDim;

struct Barrier {
  int expected, arrived = 0, generation = 0;
  explicit Barrier(int threads) : expected(threads) {}
  void arrive_and_wait();
  void arrive_and_drop() {
    expected--;
    if (expected > 0 && arrived == expected) open();
  }
  void open() {
    arrived = 0;
    generation++;
  }
};

// A block of the cluster that runs.
struct Room {
  Barrier block;
  std::vector<Barrier> warps;
  unsigned long long exchanged[2][1024];  // in turn, so that an exchange has one barrier
  unsigned fragments[2][1024][6];         // likewise, of the lanes' parts of one instruction
  std::vector<char> memory;
  char *shared, *end;
  Room(int threads, int bytes) : block(threads), memory(bytes + 2048) {
    for (int at = 0; at < threads; at += 32) warps.emplace_back(std::min(32, threads - at));
    shared = memory.data() + (1024 - (unsigned long long)memory.data() % 1024);
    end = shared + bytes;
    std::memset(shared, 0xA5, memory.data() + memory.size() - shared);
  }
  bool written_behind() const { return std::any_of(end, end + 512, [](char byte) { return byte != (char)0xA5; }); }
};
static std::vector<std::unique_ptr<Room>> the_cluster;
static std::unique_ptr<Barrier> cluster_barrier;
static Room* the_room;
static int the_rank;

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[STACK]};
  Dim thread, block;
  int rank;
  const Barrier* barrier = nullptr;  // that it waits at, closed since `generation`
  int generation = 0;
  int turn = 0;
  bool done = false;
  std::vector<std::vector<std::function<void()>>> copies;  // groups of cp.async; the last one is open
  static constexpr int STACK = 128 << 10;
};
static std::vector<std::unique_ptr<Fiber>> the_fibers;
static Fiber* the_fiber;
static ucontext_t the_scheduler;
static std::function<void()> the_body;

[[noreturn]] inline void die(const char* why) {
  std::fprintf(stderr, "thread %d of block %d: %s\n", threadIdx.x, blockIdx.x, why);
  std::abort();
}

inline void Barrier::arrive_and_wait() {
  if (++arrived == expected) return open();
  the_fiber->barrier = this;
  the_fiber->generation = generation;
  swapcontext(&the_fiber->context, &the_scheduler);
}

inline void __syncthreads() { the_room->block.arrive_and_wait(); }
inline void __syncwarp() { the_room->warps[threadIdx.x / 32].arrive_and_wait(); }
inline int cluster_size() { return (int)the_cluster.size(); }
inline int cluster_rank() { return the_rank; }
inline void cluster_sync() { cluster_barrier->arrive_and_wait(); }
template <class T>
T* peer(T* at, int rank) {
  return (T*)(the_cluster[rank]->shared + ((char*)at - the_room->shared));
}

template <class T>
T exchange(T value, int from) {
  static_assert(sizeof(T) <= 8);
  unsigned long long* values = the_room->exchanged[the_fiber->turn ^= 1] + threadIdx.x / 32 * 32;
  std::memcpy(&values[threadIdx.x % 32], &value, sizeof(T));
  __syncwarp();
  T found;
  std::memcpy(&found, &values[from], sizeof(T));
  return found;
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return exchange(value, (threadIdx.x % 32) ^ mask);
}
template <class T>
T __shfl_up_sync(unsigned, T value, int by) {
  return exchange(value, threadIdx.x % 32 < by ? threadIdx.x % 32 : threadIdx.x % 32 - by);
}
template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return exchange(value, lane);
}

// Asynchronous copies. Each is done as late as the kernel allows, at the wait for it: a value that is read before it
// has landed, or overwritten before it has been read, gives another result.
constexpr unsigned SHARED_BASE = 1024 + 16;
inline unsigned shared_address(const void* at) {
  return SHARED_BASE + (unsigned)((const char*)at - the_room->shared);
}

inline void copy_async(unsigned to, const void* from, bool there) {
  char* place = the_room->shared + (to - SHARED_BASE);
  if (to % 16 || (unsigned long long)from % 16) die("cp.async of 16 bytes that are not aligned");
  the_fiber->copies.back().push_back([=] {
    if (there)
      std::memcpy(place, from, 16);
    else
      std::memset(place, 0, 16);
  });
}
inline void copy_commit() { the_fiber->copies.emplace_back(); }
template <int LEFT>
void copy_wait() {
  auto& groups = the_fiber->copies;
  while ((int)groups.size() - 1 > LEFT) {
    for (auto& copy : groups.front()) copy();
    groups.erase(groups.begin());
  }
}
// Instructions of a warp. Each gathers the lanes' registers, and then does its lane's part.
using Fragments = const unsigned (*)[6];
inline Fragments gathered(std::initializer_list<unsigned> own) {
  unsigned(*all)[6] = the_room->fragments[the_fiber->turn ^= 1] + threadIdx.x / 32 * 32;
  std::copy(own.begin(), own.end(), all[threadIdx.x % 32]);
  __syncwarp();
  return all;
}
inline float half_of(unsigned two, int which) {
  const unsigned wide = which ? two & 0xffff0000u : two << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}
// m16n8k16: lane l has rows l / 4 and 8 below it of a and d, column l / 4 of b; of every eight columns of a and d, and
// rows of b, 2 (l % 4) and the next. The registers of a: both rows of the first eight columns, then of the others.
inline void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  Fragments all = gathered({a[0], a[1], a[2], a[3], b0, b1});
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < 4; i++) {
    const int row = lane / 4, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; k++) {
      const unsigned left = all[row * 4 + k % 8 / 2][k / 8 * 2 + i / 2];
      const unsigned right = all[column * 4 + k % 8 / 2][4 + k / 8];
      d[i] += half_of(left, k % 2) * half_of(right, k % 2);
    }
  }
}
inline unsigned short at_matrix(unsigned address, int column) {
  if (address % 16) die("ldmatrix of rows that are not aligned");
  unsigned short bits;
  std::memcpy(&bits, the_room->shared + (address - SHARED_BASE) + column * 2, 2);
  return bits;
}
inline void load_matrices(unsigned (&r)[4], unsigned address) {
  Fragments all = gathered({address});
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < 4; i++) {
    const unsigned row = all[i * 8 + lane / 4][0];
    r[i] = at_matrix(row, lane % 4 * 2) | (unsigned)at_matrix(row, lane % 4 * 2 + 1) << 16;
  }
}
inline void load_transposed(unsigned (&r)[4], unsigned address) {
  Fragments all = gathered({address});
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < 4; i++) {
    const int row = i * 8 + lane % 4 * 2;
    r[i] = at_matrix(all[row][0], lane / 4) | (unsigned)at_matrix(all[row + 1][0], lane / 4) << 16;
  }
}

template <class T, class U>
T atomicMax(T* at, U value) {
  T old = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (old < T(value) &&
         !__atomic_compare_exchange_n(at, &old, T(value), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
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
struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct alignas(8) float2 {
  float x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
using std::max;
using std::min;

inline void run_fiber() {
  the_body();
  // A thread that returns early leaves the barriers to the others.
  the_room->warps[threadIdx.x / 32].arrive_and_drop();
  the_room->block.arrive_and_drop();
  cluster_barrier->arrive_and_drop();
  the_fiber->done = true;
  swapcontext(&the_fiber->context, &the_scheduler);
}

inline bool resume(Fiber& fiber) {
  if (fiber.done || (fiber.barrier && fiber.barrier->generation == fiber.generation)) return false;
  fiber.barrier = nullptr;
  the_fiber = &fiber;
  threadIdx = fiber.thread;
  blockIdx = fiber.block;
  the_rank = fiber.rank;
  the_room = the_cluster[fiber.rank].get();
  swapcontext(&the_scheduler, &fiber.context);
  return true;
}

inline void run_cluster(int cluster, int block, int shared, int x, int y) {
  const size_t count = (size_t)cluster * block;
  cluster_barrier = std::make_unique<Barrier>(cluster * block);
  the_cluster.clear();
  for (int rank = 0; rank < cluster; rank++) the_cluster.push_back(std::make_unique<Room>(block, shared));
  while (the_fibers.size() < count) the_fibers.push_back(std::make_unique<Fiber>());
  for (size_t i = 0; i < count; i++) {
    Fiber& fiber = *the_fibers[i];
    fiber.rank = (int)i / block;
    fiber.thread = {(int)i % block, 0, 0};
    fiber.block = {x + fiber.rank, y, 0};
    fiber.barrier = nullptr;
    fiber.turn = 0;
    fiber.copies.assign(1, {});
    fiber.done = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = Fiber::STACK;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, run_fiber, 0);
  }
  bool ran = true;
  for (int round = 0; ran; round++) {
    ran = false;
    if (cluster > 1) {  // one block is ahead of the others, another one every four rounds
      const int ahead = round / 4 % cluster * block;
      for (int turn = 0; turn < 4; turn++)
        for (int i = 0; i < block; i++) ran |= resume(*the_fibers[ahead + i]);
    }
    for (size_t i = 0; i < count; i++) {
      const size_t next = round % 4 < 2 ? i : i % cluster * block + i / cluster;  // blocks one by one, or together
      ran |= resume(*the_fibers[round % 2 ? count - 1 - next : next]);
    }
  }
  for (auto& room : the_cluster)
    if (room->written_behind()) die("more shared memory is written than the launch asks for");
  for (size_t i = 0; i < count; i++)
    if (!the_fibers[i]->done) {
      std::fprintf(stderr, "thread %d of block %d waits at a barrier for ever\n", (int)i % block, x + (int)i / block);
      std::abort();
    }
}

// The blocks of a cluster run together, clusters one after another. `columns` counts blocks.
template <class Body>
void run_grid(int columns, int rows, int cluster, int block, int shared, Body body) {
  blockDim = {block, 1, 1};
  gridDim = {columns, rows, 1};
  the_body = body;
  for (int y = 0; y < rows; y++)
    for (int x = 0; x < columns; x += cluster) run_cluster(cluster, block, shared, x, y);
}
