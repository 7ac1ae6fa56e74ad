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

// Two float16, twelve bytes with eight scales and eight minima of 6 bits, 128 bytes with 256 values of 4 bits.
void dequantize_q4_k(const uint8_t* block, float* to) {
  const float scale = half_at(block), least = half_at(block + 2);
  const uint8_t* six = block + 4;
  const uint8_t* four = block + 16;
  for (int j = 0; j < 8; ++j) {
    const int of_scale = j < 4 ? six[j] & 63 : (six[j + 4] & 15) | (six[j - 4] >> 6 << 4);
    const int of_least = j < 4 ? six[j + 4] & 63 : six[j + 4] >> 4 | (six[j] >> 6 << 4);
    const float by = scale * static_cast<float>(of_scale), minus = least * static_cast<float>(of_least);
    for (int i = 0; i < 32; ++i) {
      const int value = j % 2 == 0 ? four[j / 2 * 32 + i] & 15 : four[j / 2 * 32 + i] >> 4;
      const float scaled = by * static_cast<float>(value);
      *to++ = scaled - minus;
    }
  }
}

// 128 bytes with the low four bits of 256 values, 64 with the high two, sixteen scales of 8 bits, a float16.
void dequantize_q6_k(const uint8_t* block, float* to) {
  const float scale = half_at(block + 208);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, quarter = i % 128 / 32, column = i % 32;
    const uint8_t low = block[half * 64 + quarter % 2 * 32 + column];
    const uint8_t high = block[128 + half * 32 + column];
    const int value = ((quarter < 2 ? low & 15 : low >> 4) | (high >> (2 * quarter) & 3) << 4) - 32;
    const float by = scale * static_cast<float>(static_cast<int8_t>(block[192 + i / 16]));
    to[i] = by * static_cast<float>(value);
  }
}

}  // namespace

void dequantize(BlockKind kind, const uint8_t* blocks, int64_t values, float* to) {
  const auto one = kind == BlockKind::q8_0   ? dequantize_q8_0
                   : kind == BlockKind::q4_k ? dequantize_q4_k
                                             : dequantize_q6_k;
  for (int64_t i = 0; i < values; i += values_of_block(kind), blocks += bytes_of_block(kind)) one(blocks, to + i);
}

uint16_t quantize_block(const float* values, int8_t* integers) {
  float most = 0;
  for (int i = 0; i < kQ8; ++i) most = std::max(most, std::fabs(values[i]));
  const uint16_t half = half_of_float(most / 127.0f);
  const float scale = float_of_half(half);
  for (int i = 0; i < kQ8; ++i) {
    const float nearest = scale > 0 ? std::nearbyint(values[i] / scale) : 0.0f;
    integers[i] = static_cast<int8_t>(std::min(127.0f, std::max(-127.0f, nearest)));
  }
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
