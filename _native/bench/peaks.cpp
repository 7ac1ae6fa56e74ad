// The rate of each vector instruction that the products with packed weights are made of, from registers alone: the
// floor of their time. Prints a name and 1e9 operations a second of one thread, a line each; an instruction that this
// processor lacks has no line.
#include <cstdint>
#include <cstdio>
#include <ctime>

#if defined(__x86_64__) && defined(__GNUC__)

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
#define TWELVE(name, wide) \
  ONE(name, wide, "0")     \
  ONE(name, wide, "1")     \
  ONE(name, wide, "2")     \
  ONE(name, wide, "3")     \
  ONE(name, wide, "4")     \
  ONE(name, wide, "5")     \
  ONE(name, wide, "6")     \
  ONE(name, wide, "7") ONE(name, wide, "8") ONE(name, wide, "9") ONE(name, wide, "10") ONE(name, wide, "11")
#define CLEAR(sum) "vpxor %%xmm" sum ", %%xmm" sum ", %%xmm" sum "\n"
#define KERNEL(function, name, wide)                                                                                \
  void function() {                                                                                                 \
    int64_t turns = kTurns;                                                                                         \
    asm volatile(CLEAR("0") CLEAR("1") CLEAR("2") CLEAR("3") CLEAR("4") CLEAR("5") CLEAR("6") CLEAR("7") CLEAR("8") \
                     CLEAR("9") CLEAR("10") CLEAR("11") CLEAR("14")                                                 \
                         CLEAR("15") "1:\n" TWELVE(name, wide) "dec %0\njnz 1b\nvzeroupper\n"                       \
                 : "+r"(turns)::"xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",     \
                   "xmm10", "xmm11", "xmm14", "xmm15", "cc");                                                       \
  }
KERNEL(fma_256, "vfmadd231ps", "ymm")
KERNEL(fma_512, "vfmadd231ps", "zmm")
KERNEL(pairs_512, "vdpbf16ps", "zmm")
KERNEL(fours_512, "vpdpbusd", "zmm")

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

int main() {
  print("vfmadd231ps-256", __builtin_cpu_supports("fma"), fma_256, 2 * 8);
  print("vfmadd231ps", __builtin_cpu_supports("avx512f"), fma_512, 2 * 16);
  print("vdpbf16ps", __builtin_cpu_supports("avx512bf16"), pairs_512, 2 * 32);
  print("vpdpbusd", __builtin_cpu_supports("avx512vnni"), fours_512, 2 * 64);
  return 0;
}

#else
int main() { return 0; }
#endif
