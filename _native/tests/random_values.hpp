// Names and random numbers for tests of kernels, and the nearest bfloat16 by plain integers.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "check.hpp"

// Of every instruction set; a machine has some of them.
constexpr const char* kKernelNames[] = {"portable", "avx2", "avx512", "amx", "neon", "neon_dot"};

inline float uniform(Random& random) { return static_cast<float>(random.below(1 << 20)) / (1 << 19) - 1.0f; }

inline std::vector<float> floats(Random& random, int64_t count, float scale = 1.0f) {
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) v = scale * uniform(random);
  return x;
}

// Of a finite number, ties to even.
inline uint16_t to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}
