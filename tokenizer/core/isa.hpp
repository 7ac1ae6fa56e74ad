// Which of the kernels this machine can run, asked once.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string_view>

#if defined(__x86_64__) && defined(__GNUC__)
#define FASTTOKEN_X86 1
#endif

namespace fasttoken {

enum class Isa : uint8_t { scalar, avx2, avx512 };

// Asks for every instruction set that the `target` of kernels.cpp and transcode.cpp names for it.
inline bool has_isa(Isa isa) {
#ifdef FASTTOKEN_X86
  __builtin_cpu_init();
  const bool bits = __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                    __builtin_cpu_supports("lzcnt") && __builtin_cpu_supports("popcnt");
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
