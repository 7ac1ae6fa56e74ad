// Products with packed weights: int8 against plain integer loops, and weights of float32 and of bfloat16 with rows of
// float32 against plain loops of fma, bit for bit on every target; bfloat16 against float64; and the promise that a
// row's bits do not depend on other rows, its cut or the threads.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

#include "check.hpp"
#include "prelude/cpu/blocks.hpp"
#include "prelude/cpu/packed_matmul.hpp"
#include "prelude/cpu/targets.hpp"
#include "random_values.hpp"

using namespace prelude::cpu;

namespace {

float from_bf16(uint16_t x) {
  float value;
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  std::memcpy(&value, &bits, 4);
  return value;
}
std::vector<uint16_t> halves(const std::vector<float>& x) {
  std::vector<uint16_t> made;
  for (float v : x) made.push_back(to_bf16(v));
  return made;
}

struct Packed {
  std::vector<uint32_t> words;
  PackedWeight weight;

  template <class Value>
  Packed(const std::vector<Value>& values, int64_t stride, int64_t outputs, int64_t inputs, Packing packing,
         const float* bias)
      : words(static_cast<size_t>(packed_words(outputs, inputs, packing)), 0xFFFFFFFFu),
        weight{words.data(), bias, inputs, outputs, packing} {
    pack_weight(values.data(), stride, outputs, inputs, packing, words.data());
  }
};

float from_half(uint16_t half) {
  const int exponent = half >> 10 & 31, mantissa = half & 1023;
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                   : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
  return half >> 15 ? -size : size;
}

// One block of one output: weight i is integers[i] * scale - least.
struct Block {
  int integers[kBlock];
  float scale, least = 0;

  Block() = default;
  Block(const PackedWeight& weight, int64_t output, int64_t block) {
    const uint32_t* words = weight.words + (output / kGroup * blocks_of(weight.inputs) + block) * kBlockGroupWords;
    for (int i = 0; i < kBlock; ++i)
      integers[i] = static_cast<int>((words[i / 4 * kGroup + output % kGroup] >> (8 * (i % 4))) & 255u) - 128;
    const uint32_t two = words[kBlockWords * kGroup + output % kGroup / 2];
    scale = from_half(static_cast<uint16_t>(two >> (16 * (output % 2))));
  }
};

// Block `block` of a row of Q4_K, by llama.cpp's description of it.
Block of_q4_k(const uint8_t* row, int64_t block) {
  const uint8_t* at = row + block / 8 * bytes_of_block(BlockKind::q4_k);
  const auto half = [&](int byte) { return from_half(static_cast<uint16_t>(at[byte] | at[byte + 1] << 8)); };
  const int j = static_cast<int>(block % 8);
  const int by = j < 4 ? at[4 + j] & 63 : (at[8 + j] & 15) | (at[j] >> 6 << 4);
  const int minus = j < 4 ? at[8 + j] & 63 : at[8 + j] >> 4 | (at[4 + j] >> 6 << 4);
  Block found{};
  for (int i = 0; i < kBlock; ++i) found.integers[i] = at[16 + j / 2 * 32 + i] >> (j % 2 * 4) & 15;
  found.scale = half(0) * static_cast<float>(by), found.least = half(2) * static_cast<float>(minus);
  return found;
}

// Block `block`, of 16 values, of a row of Q6_K, likewise.
Block of_q6_k(const uint8_t* row, int64_t block) {
  const uint8_t* at = row + block / 16 * bytes_of_block(BlockKind::q6_k);
  const int j = static_cast<int>(block % 16);
  Block found{};
  for (int i = 0; i < 16; ++i) {
    const int value = j * 16 + i, half = value / 128, quarter = value % 128 / 32, column = value % 32;
    const int low = at[half * 64 + quarter % 2 * 32 + column], high = at[128 + half * 32 + column];
    found.integers[i] = ((quarter < 2 ? low & 15 : low >> 4) | (high >> (2 * quarter) & 3) << 4) - 32;
  }
  found.scale = from_half(static_cast<uint16_t>(at[208] | at[209] << 8)) * static_cast<float>(int8_t(at[192 + j]));
  return found;
}

// One row of integers by the definition: those of row and weight, the sum of each block, scales, the bias.
struct Reference {
  std::vector<int> integers;
  std::vector<float> scales;
  int64_t size;  // of a block

  Reference(const float* x, int64_t inputs, Packing packing = Packing::int8) : size(block_inputs(packing)) {
    for (int64_t first = 0; first < inputs; first += size) {
      const int64_t count = std::min<int64_t>(size, inputs - first);
      float most = 0;
      for (int64_t i = 0; i < count; ++i) most = std::max(most, std::fabs(x[first + i]));
      scales.push_back(most < 1e-30f ? 0.0f : most / 127.0f);
      const double by = most < 1e-30f ? 0.0 : static_cast<double>(127.0f / most);
      for (int64_t i = 0; i < size; ++i)
        integers.push_back(i < count ? static_cast<int>(std::nearbyint(static_cast<double>(x[first + i]) * by)) : 0);
    }
  }

  template <class BlockAt>
  float output(const BlockAt& block_at, float base) const {
    float total = 0;
    for (size_t b = 0; b < scales.size(); ++b) {
      const Block block = block_at(static_cast<int64_t>(b));
      int64_t sum = 0, of_row = 0;
      for (int64_t i = 0; i < size; ++i) {
        const int integer = integers[b * static_cast<size_t>(size) + static_cast<size_t>(i)];
        sum += int64_t{integer} * block.integers[i], of_row += integer;
      }
      const float scaled = static_cast<float>(sum) * block.scale;
      total = std::fma(std::fma(static_cast<float>(-of_row), block.least, scaled), scales[b], total);
    }
    return total + base;
  }
  float output(const PackedWeight& weight, int64_t output, float base) const {
    return this->output([&](int64_t block) { return Block(weight, output, block); }, base);
  }
};

void check_int8(int64_t inputs, int64_t outputs, int64_t rows) {
  Random random{static_cast<uint64_t>(inputs * 1000 + outputs * 10 + rows)};
  const int64_t stride = inputs + 3, out_stride = outputs + 2;
  auto x = floats(random, rows * stride, 3.0f);
  const auto weight = floats(random, outputs * stride), bias = floats(random, outputs);
  if (rows > 2) std::fill_n(x.begin() + stride, inputs, 0.0f);
  if (rows > 3) x[static_cast<size_t>(2 * stride)] = 1e6f;
  const Packed packed(weight, stride, outputs, inputs, Packing::int8, bias.data());
  std::vector<float> back(static_cast<size_t>(inputs));
  for (int64_t o = 0; o < outputs; ++o) {
    unpack_output(packed.weight, o, back.data());
    for (int64_t i = 0; i < inputs; ++i) {
      const Block block(packed.weight, o, i / kBlock);
      CHECK(back[i] == static_cast<float>(block.integers[i % kBlock]) * block.scale);
      CHECK(std::fabs(back[i] - weight[o * stride + i]) <= 0.55f * block.scale);
    }
  }
  for (const char* name : kKernelNames) {
    const PackedKernels* kernels = packed_kernels_named(name, Packing::int8);
    if (kernels == nullptr) continue;
    const auto wanted = static_cast<size_t>(rows * out_stride);
    std::vector<float> out(wanted, 7.0f), threaded(wanted), added(wanted, 2.0f);
    PackedArgs a{packed.weight, x.data(), out.data(), stride, out_stride, rows, Type::f32, Type::f32, false};
    CHECK(packed_matmul(*kernels, a, 1));
    a.out = added.data(), a.adds = true;
    CHECK(packed_matmul(*kernels, a, 2));
    a.out = threaded.data(), a.adds = false;
    CHECK(packed_matmul(*kernels, a, 3));
    std::vector<uint16_t> x_half = halves(x), out_half(wanted);
    std::vector<float> x_wide, from_half(wanted);
    for (uint16_t v : x_half) x_wide.push_back(from_bf16(v));
    PackedArgs half = a;
    half.x = x_half.data(), half.x_type = Type::bf16, half.out = out_half.data(), half.out_type = Type::bf16;
    CHECK(packed_matmul(*kernels, half, 1));
    half.x = x_wide.data(), half.x_type = Type::f32, half.out = from_half.data(), half.out_type = Type::f32;
    CHECK(packed_matmul(*kernels, half, 1));
    std::vector<uint32_t> room(static_cast<size_t>(row_words(inputs, Packing::int8)));
    for (int64_t r = 0; r < rows; ++r) {
      const Reference row(x.data() + r * stride, inputs);
      const int64_t chosen = r % outputs;
      CHECK(integer_pair(packed.weight, x.data() + r * stride, chosen, room.data()) ==
            row.output(packed.weight, chosen, 0.0f));
      for (int64_t o = 0; o < outputs; ++o) {
        const auto at = static_cast<size_t>(r * out_stride + o);
        CHECK(out[at] == row.output(packed.weight, o, bias[o]));
        CHECK(added[at] == row.output(packed.weight, o, 2.0f + bias[o]));
        CHECK(threaded[at] == out[at] && out_half[at] == to_bf16(from_half[at]));
      }
      CHECK(out[static_cast<size_t>(r * out_stride + outputs)] == 7.0f);
    }
    // Any rows by themselves have the bits that they have among the others.
    for (int64_t few = 1; few < rows; few += 1 + few / 3) {
      std::vector<float> some(static_cast<size_t>(few * outputs));
      PackedArgs b = a;
      b.x = x.data() + (rows - few) * stride, b.out = some.data(), b.out_stride = outputs, b.rows = few;
      CHECK(packed_matmul(*kernels, b, few % 2 ? 2 : 1));
      for (int64_t r = 0; r < few; ++r)
        CHECK(std::memcmp(some.data() + r * outputs, out.data() + (rows - few + r) * out_stride,
                          sizeof(float) * static_cast<size_t>(outputs)) == 0);
    }
  }
}

void check_int8_limits(int64_t inputs) {
  // The largest sums there are; rows that are not finite, one of which is small; rows of which nothing is left.
  const float not_a_number = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> weight(static_cast<size_t>(inputs), -1.0f);
  std::vector<float> x(static_cast<size_t>(5 * inputs), 1.0f);
  x[static_cast<size_t>(inputs + 5)] = not_a_number;
  x[static_cast<size_t>(2 * inputs + 90)] = -std::numeric_limits<float>::infinity();
  std::fill_n(x.begin() + 3 * inputs, 2 * inputs, 1e-38f);
  x[static_cast<size_t>(5 * inputs - 1)] = not_a_number;
  const Packed packed(weight, inputs, 1, inputs, Packing::int8, nullptr);
  std::vector<uint32_t> room(static_cast<size_t>(row_words(inputs, Packing::int8)));
  CHECK(std::isnan(integer_pair(packed.weight, x.data() + inputs, 0, room.data())));
  for (const char* name : kKernelNames) {
    const PackedKernels* kernels = packed_kernels_named(name, Packing::int8);
    if (kernels == nullptr) continue;
    float out[5] = {};
    CHECK(packed_matmul(*kernels, PackedArgs{packed.weight, x.data(), out, inputs, 1, 5, Type::f32, Type::f32, false},
                        1));
    CHECK(std::fabs(out[0] / static_cast<float>(inputs) + 1.0f) < 1e-3f);
    CHECK(std::isnan(out[1]) && std::isnan(out[2]) && out[3] == 0.0f && std::isnan(out[4]));
  }
}

// Every float16 that is a scale, and every integer of a byte, through Q8_0 and back.
void check_q8() {
  constexpr int64_t kInputs = 64, kOutputs = 0x7C00 / 2;
  std::vector<uint8_t> rows(static_cast<size_t>(kOutputs * 2 * kQ8Bytes));
  for (int64_t block = 0; block < 2 * kOutputs; ++block) {
    uint8_t* at = rows.data() + block * kQ8Bytes;
    at[0] = static_cast<uint8_t>(block), at[1] = static_cast<uint8_t>(block >> 8);
    for (int i = 0; i < kBlock; ++i) at[2 + i] = static_cast<uint8_t>(block * kBlock + i);
  }
  std::vector<uint32_t> words(static_cast<size_t>(packed_words(kOutputs, kInputs, Packing::int8)));
  pack_q8(rows.data(), kOutputs, kInputs, words.data());
  const PackedWeight weight{words.data(), nullptr, kInputs, kOutputs, Packing::int8};
  float back[kInputs];
  for (int64_t o = 0; o < kOutputs; ++o) {
    unpack_output(weight, o, back);
    for (int64_t i = 0; i < kInputs; ++i) {
      const int64_t block = 2 * o + i / kBlock;
      const auto integer = static_cast<int8_t>(static_cast<uint8_t>(block * kBlock + i % kBlock));
      CHECK(back[i] == static_cast<float>(integer) * from_half(static_cast<uint16_t>(block)));
    }
  }
}

// Random blocks of Q4_K or Q6_K: their values, and products with them on every target. The first output has the
// largest integers and the second the smallest; the first row's are the largest too, and of the second the smallest.
void check_few(Packing packing, int64_t together, int64_t outputs, int64_t rows) {
  Random random{static_cast<uint64_t>(together + outputs * 10 + rows)};
  const bool six = packing == Packing::q6_k;
  const BlockKind kind = six ? BlockKind::q6_k : BlockKind::q4_k;
  const int64_t inputs = together * kFewInputs, of_row = together * bytes_of_block(kind);
  std::vector<uint8_t> stored(static_cast<size_t>(outputs * of_row));
  for (uint8_t& byte : stored) byte = static_cast<uint8_t>(random.below(256));
  for (size_t at = six ? 208 : 0; at < stored.size(); at += static_cast<size_t>(bytes_of_block(kind)))
    stored[at + 1] &= 0xA3, stored[at + (six ? 1 : 3)] &= 0xA3;  // no large ones
  const int64_t integers = six ? 0 : 16, end = six ? 192 : 144;
  for (int64_t o = 0; o < std::min<int64_t>(outputs, 2); ++o)
    for (int64_t at = o * of_row; at < (o + 1) * of_row; at += bytes_of_block(kind))
      std::fill(stored.begin() + at + integers, stored.begin() + at + end, o == 0 ? 0xFF : 0);
  std::vector<uint32_t> words(static_cast<size_t>(packed_words(outputs, inputs, packing)), 0xFFFFFFFFu);
  pack_few(stored.data(), outputs, inputs, packing, words.data());
  const auto bias = floats(random, outputs);
  auto x = floats(random, rows * inputs, 3.0f);
  for (int64_t i = 0; i < std::min<int64_t>(rows, 2) * inputs; ++i)
    x[static_cast<size_t>(i)] = i < inputs ? 3.0f : -3.0f;
  const PackedWeight weight{words.data(), bias.data(), inputs, outputs, packing};
  std::vector<float> back(static_cast<size_t>(inputs)), values(back.size());
  for (int64_t o = 0; o < outputs; ++o) {
    unpack_output(weight, o, back.data());
    dequantize(kind, stored.data() + o * of_row, inputs, values.data());
    CHECK(back == values);
  }
  std::vector<uint32_t> room(static_cast<size_t>(row_words(inputs, packing)));
  for (const char* name : kKernelNames) {
    const PackedKernels* kernels = packed_kernels_named(name, packing);
    if (kernels == nullptr) continue;
    for (const int threads : {1, 3}) {
      std::vector<float> out(static_cast<size_t>(rows * outputs));
      PackedArgs a{weight, x.data(), out.data(), inputs, outputs, rows, Type::f32, Type::f32, false};
      CHECK(packed_matmul(*kernels, a, threads));
      for (int64_t r = 0; r < rows; ++r) {
        const Reference row(x.data() + r * inputs, inputs, packing);
        for (int64_t o = 0; o < outputs; ++o) {
          const auto block = [&](int64_t b) { return (six ? of_q6_k : of_q4_k)(stored.data() + o * of_row, b); };
          CHECK(out[static_cast<size_t>(r * outputs + o)] == row.output(block, bias[static_cast<size_t>(o)]));
          if (o == r % outputs)
            CHECK(integer_pair(weight, x.data() + r * inputs, o, room.data()) == row.output(block, 0.0f));
        }
      }
    }
  }
}

// Any bytes are blocks of each kind; none is read beyond the last.
void check_blocks() {
  Random random{7};
  for (const BlockKind kind : {BlockKind::q8_0, BlockKind::q4_k, BlockKind::q6_k, BlockKind::q5_k}) {
    const int64_t values = 3 * values_of_block(kind);
    std::vector<uint8_t> blocks(static_cast<size_t>(3 * bytes_of_block(kind)));
    for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(random.below(256));
    std::vector<float> found(static_cast<size_t>(values));
    dequantize(kind, blocks.data(), values, found.data());
    for (float& value : found) value = std::isfinite(value) ? value : 1.0f;
    std::vector<uint8_t> eight(static_cast<size_t>(values / kBlock * kQ8Bytes));
    quantize_q8(found.data(), values, eight.data());
    std::vector<float> back(found.size());
    dequantize(BlockKind::q8_0, eight.data(), values, back.data());
    for (int64_t i = 0; i < values; ++i) {
      float most = 0;
      for (int64_t j = i / kBlock * kBlock; j < (i / kBlock + 1) * kBlock; ++j)
        most = std::max(most, std::fabs(found[j]));
      if (most < kMostScaled) CHECK(std::fabs(back[i] - found[i]) <= 0.0045f * most + 5e-6f);
    }
  }
}

void check_bf16(int64_t inputs, int64_t outputs, int64_t rows) {
  Random random{static_cast<uint64_t>(inputs + outputs + rows)};
  const auto x = floats(random, rows * inputs), weight = floats(random, outputs * inputs);
  const auto x_half = halves(x), weight_half = halves(weight);
  const Packed packed(weight_half, inputs, outputs, inputs, Packing::bf16, nullptr);
  std::vector<float> back(static_cast<size_t>(inputs));
  unpack_output(packed.weight, outputs - 1, back.data());
  for (int64_t i = 0; i < inputs; ++i) CHECK(back[i] == from_bf16(weight_half[(outputs - 1) * inputs + i]));
  for (const char* name : kKernelNames) {
    const PackedKernels* kernels = packed_kernels_named(name, Packing::bf16);
    if (kernels == nullptr) continue;
    std::vector<float> out(static_cast<size_t>(rows * outputs)), from_half(out.size()), alone(out.size());
    PackedArgs a{packed.weight, x.data(), out.data(), inputs, outputs, rows, Type::f32, Type::f32, false};
    CHECK(packed_matmul(*kernels, a, 3));
    PackedArgs b = a;
    b.x = x_half.data(), b.x_type = Type::bf16, b.out = from_half.data();
    CHECK(packed_matmul(*kernels, b, 1));
    for (int64_t r = 0; r < rows; ++r) {
      PackedArgs one = a;
      one.x = x.data() + r * inputs, one.out = alone.data() + r * outputs, one.rows = 1;
      CHECK(packed_matmul(*kernels, one, r % 2 ? 2 : 1));
      for (int64_t o = 0; o < outputs; ++o) {
        double exact = 0, size = 0;
        for (int64_t i = 0; i < inputs; ++i) {
          const double product = static_cast<double>(from_bf16(x_half[r * inputs + i])) *
                                 static_cast<double>(from_bf16(weight_half[o * inputs + i]));
          exact += product, size += std::fabs(product);
        }
        CHECK(std::fabs(out[r * outputs + o] - exact) <= 2e-6 * size + 1e-12);
        CHECK(from_half[r * outputs + o] == out[r * outputs + o]);
      }
    }
    CHECK(std::memcmp(alone.data(), out.data(), sizeof(float) * out.size()) == 0);
  }
}

// Weights of any values that the packing keeps; rows of float32.
void check_fused(Packing packing, int64_t inputs, int64_t outputs, int64_t rows) {
  Random random{static_cast<uint64_t>(inputs * 7 + outputs * 3 + rows)};
  const int64_t stride = inputs + 3, out_stride = outputs + 2;
  const auto x = floats(random, rows * stride, 3.0f), bias = floats(random, outputs);
  auto values = floats(random, outputs * stride);
  auto weight_half = halves(values);
  if (packing == Packing::f16)  // of any size, from the smallest ones
    for (uint16_t& half : weight_half) half = static_cast<uint16_t>(random.below(0x7C00) | (half & 0x8000u));
  if (packing != Packing::f32)
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = packing == Packing::f16 ? from_half(weight_half[i]) : from_bf16(weight_half[i]);
  const Packed packed = packing == Packing::f32 ? Packed(values, stride, outputs, inputs, packing, bias.data())
                                                : Packed(weight_half, stride, outputs, inputs, packing, bias.data());
  std::vector<float> back(static_cast<size_t>(inputs));
  for (int64_t o = 0; o < outputs; ++o) {
    unpack_output(packed.weight, o, back.data());
    for (int64_t i = 0; i < inputs; ++i) CHECK(back[i] == values[o * stride + i]);
  }
  std::vector<float> wanted;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t o = 0; o < outputs; ++o) {
      float sum = 0;
      for (int64_t i = 0; i < inputs; ++i) sum = std::fma(values[o * stride + i], x[r * stride + i], sum);
      wanted.push_back(sum);
    }
  for (const char* name : kKernelNames) {
    const PackedKernels* kernels = packed_kernels_named(name, packing);
    if (kernels == nullptr) continue;
    const auto size = static_cast<size_t>(rows * out_stride);
    std::vector<float> out(size, 7.0f), added(size, 2.0f), alone(static_cast<size_t>(outputs));
    std::vector<uint16_t> out_half(size);
    PackedArgs a{packed.weight, x.data(), out.data(), stride, out_stride, rows, Type::f32, Type::f32, false};
    CHECK(packed_matmul(*kernels, a, 3));
    a.out = added.data(), a.adds = true;
    CHECK(packed_matmul(*kernels, a, 1));
    a.out = out_half.data(), a.adds = false, a.out_type = Type::bf16;
    CHECK(packed_matmul(*kernels, a, 1));
    for (int64_t r = 0; r < rows; ++r) {
      PackedArgs one = a;
      one.x = x.data() + r * stride, one.out = alone.data(), one.rows = 1, one.out_type = Type::f32;
      CHECK(packed_matmul(*kernels, one, 1));
      for (int64_t o = 0; o < outputs; ++o) {
        const auto at = static_cast<size_t>(r * out_stride + o);
        const float sum = wanted[static_cast<size_t>(r * outputs + o)];
        CHECK(out[at] == sum + bias[o] && alone[static_cast<size_t>(o)] == out[at]);
        CHECK(added[at] == sum + (2.0f + bias[o]) && out_half[at] == to_bf16(out[at]));
      }
      CHECK(out[static_cast<size_t>(r * out_stride + outputs)] == 7.0f);
    }
  }
  // Rows that are widened from bfloat16 themselves.
  const auto x_half = halves(x);
  std::vector<float> x_wide, from_half(static_cast<size_t>(rows * outputs)), from_wide(from_half.size());
  for (uint16_t v : x_half) x_wide.push_back(from_bf16(v));
  const PackedKernels& best = *best_packed_kernels(packing);
  PackedArgs a{packed.weight, x_half.data(), from_half.data(), stride, outputs, rows, Type::bf16, Type::f32, false};
  CHECK(packed_matmul(best, a, 1));
  a.x = x_wide.data(), a.x_type = Type::f32, a.out = from_wide.data();
  CHECK(packed_matmul(best, a, 1));
  CHECK(from_half == from_wide);
}

}  // namespace

int main() {
  for (int64_t inputs : {1, 3, 4, 17, 48, 63, 384})
    for (int64_t outputs : {1, 31, 32, 70, 129})
      for (int64_t rows : {1, 2, 5, 12, 13, 29}) check_int8(inputs, outputs, rows);
  for (int64_t inputs : {1, 2, 3, 16, 47, 192})
    for (int64_t outputs : {1, 31, 32, 70})
      for (int64_t rows : {1, 2, 5, 6, 7, 12, 13, 29})
        for (const Packing packing : {Packing::f32, Packing::widened, Packing::f16})
          check_fused(packing, inputs, outputs, rows);
  // So many rows of so many inputs that the inputs are cut into parts, an odd number of them too.
  for (const Packing packing : {Packing::f32, Packing::widened, Packing::f16}) {
    check_fused(packing, 1030, 100, 81);
    check_fused(packing, 1501, 100, 81);
  }
  check_int8(1024, 300, 81);
  for (int64_t inputs : {100, 131'072}) check_int8_limits(inputs);
  check_q8();
  for (int64_t outputs : {1, 31, 33, 100})
    for (int64_t rows : {1, 2, 4, 7, 8, 29, 64})
      for (const Packing packing : {Packing::q4_k, Packing::q6_k}) check_few(packing, 1 + rows % 3, outputs, rows);
  check_blocks();
  for (int64_t inputs : {1, 2, 7, 48, 193})
    for (int64_t outputs : {1, 32, 70})
      for (int64_t rows : {1, 6, 7, 13, 40}) check_bf16(inputs, outputs, rows);
  check_bf16(1201, 70, 200);
  std::printf("packed products: ok\n");
  return 0;
}
