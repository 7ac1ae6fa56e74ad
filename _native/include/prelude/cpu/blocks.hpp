// Rows of GGUF's blocks as floats, and floats as rows of Q8_0. The values are those of llama.cpp's own dequantizer,
// bit for bit: the same float32 operations in the same order.
#pragma once

#include <cstdint>

namespace prelude::cpu {

enum class BlockKind : int32_t { q8_0 = 0, q4_k = 1, q6_k = 2, q5_k = 3 };

constexpr int64_t values_of_block(BlockKind kind) { return kind == BlockKind::q8_0 ? 32 : 256; }
constexpr int64_t bytes_of_block(BlockKind kind) {
  constexpr int64_t kBytes[] = {34, 144, 210, 176};
  return kBytes[static_cast<int>(kind)];
}

// Of 32 values of Q4_K or Q5_K: numbers of 6 bits by which the two float16 of the 256 are multiplied.
struct SixBits {
  uint8_t scale, least;
};
// `bytes`: the twelve that hold eight of each.
constexpr SixBits six_bits(const uint8_t* bytes, int of) {
  const auto byte = [](int value) { return static_cast<uint8_t>(value); };
  if (of < 4) return {byte(bytes[of] & 63), byte(bytes[of + 4] & 63)};
  return {byte((bytes[of + 4] & 15) | (bytes[of - 4] >> 6 << 4)), byte(bytes[of + 4] >> 4 | (bytes[of] >> 6 << 4))};
}

// Integer `i` of the 256 of a block.
constexpr uint8_t q4_k_at(const uint8_t* block, int i) {
  return static_cast<uint8_t>(block[16 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15);
}
// The same plus 32.
constexpr uint8_t q6_k_at(const uint8_t* block, int i) {
  const int half = i / 128, quarter = i % 128 / 32, column = i % 32;
  const int low = block[half * 64 + quarter % 2 * 32 + column] >> (quarter < 2 ? 0 : 4) & 15;
  return static_cast<uint8_t>(low | (block[128 + half * 32 + column] >> (2 * quarter) & 3) << 4);
}

// `values` are whole blocks.
void dequantize(BlockKind kind, const uint8_t* blocks, int64_t values, float* to);

// 32 values as integers from -127 to 127 and their scale in float16, which is returned: the largest absolute value
// over 127.
uint16_t quantize_block(const float* values, int8_t* integers);

// Blocks of Q8_0; `values` are whole blocks.
void quantize_q8(const float* from, int64_t values, uint8_t* blocks);

}  // namespace prelude::cpu
