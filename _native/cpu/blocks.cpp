// GGUF's blocks; see blocks.hpp.
#include "prelude/cpu/blocks.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "prelude/cpu/half.hpp"

namespace prelude::cpu {
namespace {

constexpr int kQ8 = 32;

float half_at(const uint8_t* bytes) {
  uint16_t half;
  std::memcpy(&half, bytes, 2);
  return float_of_half(half);
}

void dequantize_q8_0(const uint8_t* block, float* to) {
  const float scale = half_at(block);
  for (int i = 0; i < kQ8; ++i) to[i] = scale * static_cast<float>(static_cast<int8_t>(block[2 + i]));
}

// Two float16, twelve bytes with eight scales and eight minima of 6 bits, for values of 5 bits 32 bytes with the
// highest bits, 128 bytes with 256 values of 4 bits.
template <bool kFive>
void dequantize_q45_k(const uint8_t* block, float* to) {
  const float scale = half_at(block), least = half_at(block + 2);
  const uint8_t* fifth = block + 16;
  const uint8_t* four = block + (kFive ? 48 : 16);
  for (int j = 0; j < 8; ++j) {
    const SixBits six = six_bits(block + 4, j);
    const float by = scale * static_cast<float>(six.scale), minus = least * static_cast<float>(six.least);
    for (int i = 0; i < 32; ++i) {
      int value = j % 2 == 0 ? four[j / 2 * 32 + i] & 15 : four[j / 2 * 32 + i] >> 4;
      if constexpr (kFive) value |= (fifth[i] >> j & 1) << 4;
      const float scaled = by * static_cast<float>(value);
      *to++ = scaled - minus;
    }
  }
}

// 128 bytes with the low four bits of 256 values, 64 with the high two, sixteen scales of 8 bits, a float16.
void dequantize_q6_k(const uint8_t* block, float* to) {
  const float scale = half_at(block + 208);
  for (int i = 0; i < 256; ++i) {
    const float by = scale * static_cast<float>(static_cast<int8_t>(block[192 + i / 16]));
    to[i] = by * static_cast<float>(q6_k_at(block, i) - 32);
  }
}

}  // namespace

void dequantize(BlockKind kind, const uint8_t* blocks, int64_t values, float* to) {
  constexpr void (*kOne[])(const uint8_t*, float*) = {dequantize_q8_0, dequantize_q45_k<false>, dequantize_q6_k,
                                                      dequantize_q45_k<true>};
  const auto one = kOne[static_cast<int>(kind)];
  for (int64_t i = 0; i < values; i += values_of_block(kind), blocks += bytes_of_block(kind)) one(blocks, to + i);
}

uint16_t quantize_block(const float* values, int8_t* integers) {
  // Loops that compilers make vectors of: sizes are compared as integers, and adding 1.5 * 2^23 rounds to an integer,
  // which is then the lowest byte.
  int32_t bits[kQ8], most = 0;
  std::memcpy(bits, values, sizeof bits);
  for (int i = 0; i < kQ8; ++i) most = std::max(most, bits[i] & 0x7FFFFFFF);
  float largest;
  std::memcpy(&largest, &most, 4);
  const uint16_t half = half_of_float(largest / 127.0f);
  const float scale = float_of_half(half);
  if (!(scale > 0)) {
    std::memset(integers, 0, kQ8);
    return half;
  }
  float shifted[kQ8];
  for (int i = 0; i < kQ8; ++i) shifted[i] = std::min(127.0f, std::max(-127.0f, values[i] / scale)) + 12582912.0f;
  std::memcpy(bits, shifted, sizeof bits);
  for (int i = 0; i < kQ8; ++i) integers[i] = static_cast<int8_t>(bits[i]);
  return half;
}

void quantize_q8(const float* from, int64_t values, uint8_t* blocks) {
  for (int64_t i = 0; i < values; i += kQ8, blocks += bytes_of_block(BlockKind::q8_0)) {
    int8_t integers[kQ8];
    const uint16_t half = quantize_block(from + i, integers);
    std::memcpy(blocks, &half, 2);
    std::memcpy(blocks + 2, integers, kQ8);
  }
}

}  // namespace prelude::cpu
