// The rate of each vector instruction that the products with packed weights are made of, from registers alone, and
// that of reading memory: the floors of their time. Prints a name and 1e9 operations a second of one thread, a line
// each; an instruction that this processor lacks has no line. The last line is `memory` and 1e9 bytes a second that
// as many threads read together as the argument says.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <thread>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#ifdef __linux__
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

constexpr int64_t kTurns = 8'000'000;
constexpr int kSums = 12;  // of a turn, more than the latency of an instruction times its rate

double processor_seconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Twelve sums, each of which waits for itself alone. The registers hold zeros.
#define ONE(name, wide, sum) name " %%" wide "14, %%" wide "15, %%" wide sum "\n"
#define SIX(name, wide, a, b, c, d, e, f) \
  ONE(name, wide, a) ONE(name, wide, b) ONE(name, wide, c) ONE(name, wide, d) ONE(name, wide, e) ONE(name, wide, f)
#define TWELVE(name, wide) \
  SIX(name, wide, "0", "1", "2", "3", "4", "5") SIX(name, wide, "6", "7", "8", "9", "10", "11")
#define CLEAR(sum) "vpxor %%xmm" sum ", %%xmm" sum ", %%xmm" sum "\n"
#define KERNEL(function, name, wide)                                                                                \
  void function() {                                                                                                 \
    int64_t turns = kTurns;                                                                                         \
    asm volatile(CLEAR("0") CLEAR("1") CLEAR("2") CLEAR("3") CLEAR("4") CLEAR("5") CLEAR("6") CLEAR("7") CLEAR("8") \
                     CLEAR("9") CLEAR("10") CLEAR("11") CLEAR("14")                                                 \
                         CLEAR("15") "1:\n" TWELVE(name, wide) "dec %0\njnz 1b\nvzeroupper\n"                       \
                 : "+r"(turns)::"xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",     \
                   "xmm10", "xmm11", "xmm13", "xmm14", "xmm15", "cc");                                              \
  }
KERNEL(fma_256, "vfmadd231ps", "ymm")
KERNEL(fma_512, "vfmadd231ps", "zmm")
KERNEL(pairs_512, "vdpbf16ps", "zmm")
KERNEL(fours_512, "vpdpbusd", "zmm")
#define TO_13(name, from) name " %%ymm14, %%ymm" from ", %%ymm13\n"
KERNEL(twos_256, TO_13("vpmaddwd", "15") "vpaddd", "ymm")
KERNEL(fours_256, TO_13("vpsignb", "15") TO_13("vpmaddubsw", "13") TO_13("vpmaddwd", "13") "vpaddd", "ymm")

// Four sums of 16 rows by 16 outputs, each instruction with 32 inputs; a sixteenth of the turns.
void tiles() {
  struct alignas(64) {
    uint8_t palette = 1, unused[15] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16};
  } shapes;
  asm volatile("ldtilecfg %0" ::"m"(shapes));
  for (int64_t turn = 0; turn < kTurns / 16; ++turn)
    asm volatile(
        "tdpbf16ps %%tmm5, %%tmm4, %%tmm0\ntdpbf16ps %%tmm5, %%tmm4, %%tmm1\n"
        "tdpbf16ps %%tmm5, %%tmm4, %%tmm2\ntdpbf16ps %%tmm5, %%tmm4, %%tmm3" ::);
  asm volatile("tilerelease");
}

bool has_tiles() {
#ifdef __linux__
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBits = 1u << 22 | 1u << 24;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kBits) == kBits &&
         syscall(SYS_arch_prctl, 0x1023, 18) == 0;  // ARCH_REQ_XCOMP_PERM
#else
  return false;
#endif
}

__attribute__((target("avx2"))) uint64_t read(const __m256i* from, size_t count) {
  __m256i sums[8] = {};
  for (size_t at = 0; at < count; at += 8)
    for (size_t k = 0; k < 8; ++k) sums[k] = _mm256_xor_si256(sums[k], _mm256_load_si256(from + at + k));
  for (size_t k = 1; k < 8; ++k) sums[0] = _mm256_xor_si256(sums[0], sums[k]);
  return static_cast<uint64_t>(_mm256_extract_epi64(sums[0], 0));
}

// 1e9 bytes a second of so many threads together: each reads 256 MiB of its own, in large pages where there are any.
double memory(size_t threads) {
  constexpr size_t kBytes = size_t{1} << 28;
  void* all = std::aligned_alloc(size_t{1} << 21, threads * kBytes);
  if (all == nullptr) return 0;
#ifdef MADV_HUGEPAGE
  madvise(all, threads * kBytes, MADV_HUGEPAGE);
#endif
  std::memset(all, 1, threads * kBytes);
  std::atomic<uint64_t> sum{0};
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto began = std::chrono::steady_clock::now();
    std::vector<std::thread> readers;
    for (size_t t = 0; t < threads; ++t)
      readers.emplace_back([&sum, from = static_cast<const char*>(all) + t * kBytes] {
        sum += read(reinterpret_cast<const __m256i*>(from), kBytes / 32);
      });
    for (std::thread& one : readers) one.join();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  }
  std::free(all);
  return 1e-9 * static_cast<double>(threads * kBytes) / best;
}

void print(const char* name, bool supported, void (*kernel)(), double operations) {
  if (!supported) return;
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {  // other load on the machine only adds
    const double began = processor_seconds();
    kernel();
    const double taken = processor_seconds() - began;
    if (taken < best) best = taken;
  }
  std::printf("%s %.1f\n", name, operations * kSums * static_cast<double>(kTurns) / best * 1e-9);
}

}  // namespace

int main(int count, char** arguments) {
  print("vfmadd231ps-256", __builtin_cpu_supports("fma"), fma_256, 2 * 8);
  print("vfmadd231ps", __builtin_cpu_supports("avx512f"), fma_512, 2 * 16);
  print("vdpbf16ps", __builtin_cpu_supports("avx512bf16"), pairs_512, 2 * 32);
  print("vpmaddwd-256", __builtin_cpu_supports("avx2"), twos_256, 2 * 16);
  print("vpmaddubsw-256", __builtin_cpu_supports("avx2"), fours_256, 2 * 32);
  print("vpdpbusd", __builtin_cpu_supports("avx512vnni"), fours_512, 2 * 64);
  print("tdpbf16ps", has_tiles(), tiles, 2.0 * 16 * 16 * 32 * 4 / 16 / kSums);
  if (__builtin_cpu_supports("avx2"))
    std::printf("memory %.1f\n", memory(count > 1 ? static_cast<size_t>(std::atoi(arguments[1])) : 1));
  return 0;
}

#else
int main() { return 0; }
#endif
