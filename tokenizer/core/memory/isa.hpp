// Which of the kernels this machine can run, asked once.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string_view>

#if defined(__x86_64__) && defined(__GNUC__)
#define FASTTOKEN_X86 1
#include <cpuid.h>
#endif

namespace fasttoken {

enum class Isa : uint8_t { scalar, avx2, avx512 };

#ifdef FASTTOKEN_X86
// By CPUID: clang 14's __builtin_cpu_supports does not know the name.
inline bool has_lzcnt() {
  constexpr unsigned features = 0x80000001, lzcnt = 1u << 5;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(features, &eax, &ebx, &ecx, &edx) != 0 && (ecx & lzcnt) != 0;
}
#endif

// Asks for every instruction set that the `target` of kernels.cpp and transcode.cpp names for it.
inline bool has_isa(Isa isa) {
#ifdef FASTTOKEN_X86
  __builtin_cpu_init();
  const bool bits = __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                    __builtin_cpu_supports("popcnt") && has_lzcnt();
  if (isa == Isa::avx512)
    return bits && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2");
  if (isa == Isa::avx2) return bits && __builtin_cpu_supports("avx2");
#endif
  return isa == Isa::scalar;
}

// The best there is; PRELUDE_TOKENIZER_ISA=scalar|avx2|avx512 asks for less, to measure or to rule out.
inline Isa best_isa() {
  const char* wish = std::getenv("PRELUDE_TOKENIZER_ISA");
  std::string_view name = wish ? wish : "";
  Isa most = name == "scalar" ? Isa::scalar : name == "avx2" ? Isa::avx2 : Isa::avx512;
  for (Isa isa : {Isa::avx512, Isa::avx2})
    if (isa <= most && has_isa(isa)) return isa;
  return Isa::scalar;
}

}  // namespace fasttoken
