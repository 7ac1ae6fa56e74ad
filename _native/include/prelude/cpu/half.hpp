// float16 and bfloat16, in plain C++.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace prelude::cpu {

inline float as_float(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float x;
  std::memcpy(&x, &wide, 4);
  return x;
}
inline float as_float(float x) { return x; }
// Ties to even; NaN stays NaN.
inline uint16_t as_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>(x == x ? rounded : ((bits >> 16) | 0x40u));
}

inline float float_of_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16, magnitude = half & 0x7FFFu;
  uint32_t bits = (magnitude << 13) + (112u << 23);
  if (magnitude >= 0x7C00u) bits += 112u << 23;  // infinity and NaN
  float value;
  std::memcpy(&value, &bits, 4);
  if (magnitude < 0x400u) value = static_cast<float>(magnitude) * 0x1p-24f;
  std::memcpy(&bits, &value, 4);
  bits |= sign;
  std::memcpy(&value, &bits, 4);
  return value;
}
// Of a number that is not negative, ties to even; a value that is too large becomes the largest finite one.
inline uint16_t half_of_float(float value) {
  if (!(value < 65504.0f)) return 0x7BFFu;
  if (value < 0x1p-14f) return static_cast<uint16_t>(std::nearbyint(value * 0x1p24f));
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits -= 112u << 23;
  return static_cast<uint16_t>((bits + 0xFFFu + ((bits >> 13) & 1u)) >> 13);
}

}  // namespace prelude::cpu
