// Products with a weight that was packed once for the vector units.
//
// A packed weight is words of 32 bits. A word holds consecutive inputs of one output, as many as fit:
//
//     words[group][word][lane]      output = group * kGroup + lane,  input = word * values of a word + its place
//
//   f32    one input a word. A product and the sum are rounded once together, from the first input to the last. So
//          the bits are the same on every machine.
//   bf16   two inputs a word. The same order, by the processor's instruction for pairs of bfloat16; by amx 32 inputs
//          are summed and added at a time.
//   widened   the words of bf16. A row of x stays float32 and a weight is widened in a register; sums as in f32.
//   f16    float16, 16 bits an input: the outputs of an input lie side by side. Widened and summed as `widened` is.
//   int8   four inputs a word, in blocks of 32 inputs, that is eight words of each output and behind them the block's
//          scales in float16, one for each output. A weight is (byte - 128) * scale, the values of GGUF's Q8_0. A row
//          of x is quantized when it is used: blocks of 32 integers from -127 to 127 with a float32 scale each. The
//          sum over a block is an int32 and exact, the sum over blocks goes from the first to the last in float32, so
//          a product has the same bits on every machine, with any instruction set.
//   q4_k   GGUF's Q4_K, value for value: a weight is integer * scale - least, with integers from 0 to 15 and for each
//          32 inputs of an output a scale and a least. For 256 inputs a group has words of float16, of scales and of
//          leasts one for each output; bytes by which these are multiplied, for each 32 inputs and output; and the
//          integers, four words of an output for each 32 inputs: low halves of bytes are the integers of a word of
//          int8, high ones those of the fourth word behind it.
//   q6_k   GGUF's Q6_K, likewise, without leasts, in blocks of 16 inputs: integers from -32 to 31, plus 32. Two words
//          have the low four bits, high halves those of the second word behind; a third word has the high two bits
//          of each word's bytes in the order of the words, the first ones lowest.
//
// Rows of x are those of int8, in q6_k in blocks of 16, and a product has the same bits on every machine.
// Every kind gives a row the same bits with any other rows and any cut of the work.
// A row of x that holds a NaN or an infinity gives a row of NaN in int8, q4_k and q6_k.
#pragma once

#include <cstdint>

#include "prelude/cpu/parallel.hpp"
#include "prelude/cpu/types.hpp"

namespace prelude::cpu {

enum class Packing : int32_t { f32 = 0, bf16 = 1, int8 = 2, widened = 3, f16 = 4, q4_k = 5, q6_k = 6 };

inline constexpr int kGroup = 32;           // outputs that lie side by side
inline constexpr int kHalf = 16;            // outputs of a kernel's sums
inline constexpr int kMostPackedRows = 16;  // of x that any kernel takes at a time
inline constexpr int kBlock = 32;           // inputs of int8 with a scale of their own
inline constexpr int kBlockWords = kBlock / 4;
inline constexpr int kBlockGroupWords = kBlockWords * kGroup + kGroup / 2;  // of a block of a group, with the scales
inline constexpr float kToInteger = 12582912.0f;      // 1.5 * 2^23: adding it rounds to an integer, the lowest bits
inline constexpr int32_t kNoSum = 0x4B400000;         // its bits: an integer more is a number more
inline constexpr float kLeastScaled = 1e-30f;         // a block of a row below it is zero in int8
inline constexpr float kMostScaled = 65504.0f * 127;  // the largest weight of int8
inline constexpr int kQ8Bytes = 2 + kBlock;           // of a block of Q8_0: its scale, its integers
inline constexpr int kFewInputs = 256;                // of a block of q4_k and q6_k in a file

// Rows of x are quantized.
constexpr bool quantizes(Packing packing) {
  return packing == Packing::int8 || packing == Packing::q4_k || packing == Packing::q6_k;
}
// Inputs that have a scale of their own, in the weight and in a row.
constexpr int block_inputs(Packing packing) { return packing == Packing::q6_k ? kBlock / 2 : kBlock; }

// 256 inputs of a group in q4_k or q6_k: float16, bytes, integers.
struct Few {
  int scales;  // an output's numbers of float16, and its bytes of a block
  int words;   // an output's words of a block
  int blocks;

  constexpr int bytes_at() const { return scales * kGroup / 2; }  // in words
  constexpr int words_at() const { return bytes_at() + blocks * scales * kGroup / 4; }
  constexpr int all() const { return words_at() + blocks * words * kGroup; }
};
constexpr Few few_of(Packing packing) { return packing == Packing::q4_k ? Few{2, 4, 8} : Few{1, 3, 16}; }

constexpr int64_t blocks_of(int64_t inputs, Packing packing = Packing::int8) {
  return (inputs + block_inputs(packing) - 1) / block_inputs(packing);
}
// Words of a block of a row: integers, start of the sum, scale.
constexpr int block_row_words(Packing packing) { return block_inputs(packing) / 4 + 2; }
// Words of a prepared row of x.
constexpr int64_t row_words(int64_t inputs, Packing packing) {
  const int64_t pairs = (inputs + 1) / 2;
  return quantizes(packing)            ? blocks_of(inputs, packing) * block_row_words(packing)
         : packing == Packing::bf16    ? pairs
         : packing == Packing::widened ? 2 * pairs
                                       : inputs;
}
// Words of a group of outputs.
constexpr int64_t group_words(int64_t inputs, Packing packing) {
  if (packing == Packing::int8) return blocks_of(inputs) * kBlockGroupWords;
  if (quantizes(packing)) return inputs / kFewInputs * few_of(packing).all();
  if (packing == Packing::f16) return inputs * (kGroup / 2);
  return (packing == Packing::f32 ? inputs : (inputs + 1) / 2) * kGroup;
}
// Words of a whole packed weight; the last group is padded by outputs of zero.
constexpr int64_t packed_words(int64_t outputs, int64_t inputs, Packing packing) {
  return (outputs + kGroup - 1) / kGroup * group_words(inputs, packing);
}

struct PackedWeight {
  const uint32_t* words;
  const float* bias;  // [outputs], or null
  int64_t inputs;
  int64_t outputs;
  Packing packing;
};

// out = x * weight^T + bias, or out += the same. A sum is added to an `out` of float32 only.
struct PackedArgs {
  PackedWeight weight;
  const void* x;  // rows of `weight.inputs` values, `x_stride` apart
  void* out;
  int64_t x_stride;
  int64_t out_stride;
  int64_t rows;
  Type x_type;
  Type out_type;
  bool adds;
};

// Rows of x as the kernels read them, in blocks: the first `longer` blocks, one at least, have a row more than the
// others. Quantized
// and by amx words[row][word], else words[block][word][row of the block]. Of integers a sum over a block of inputs
// starts at kToInteger minus 128 times the sum of the row's integers, since a byte of a weight is 128 too large: as
// bits of a float, so that the sum's bits are those of kToInteger plus the sum. In q6_k it is minus 32 times; if a
// kernel's sums of few bits are pairs of 16 bits, the start is two such numbers without kToInteger: of the two lower
// inputs of each word, and of the upper ones.
struct PackedRows {
  uint32_t* words;
  int64_t least;  // rows of a block
  int64_t longer;
  int64_t parts;  // of the words of a row, that are met one after the other

  constexpr int64_t first_of(int64_t block) const { return block * least + (block < longer ? block : longer); }
};

struct PackedKernels {
  const char* name;
  Packing packing;
  int most_rows;   // that are taken at a time
  int lanes;       // outputs that are packed at a time; `to` is the first word of the first of them
  int part_words;  // of a row, at most, that meet the weights at a time where rows are many; 0: all
  void (*pack_floats)(const float* weight, int64_t stride, int64_t inputs, uint32_t* to);  // one a word
  void (*pack_pairs)(const uint16_t* weight, int64_t stride, int64_t inputs, uint32_t* to);
  void (*pack_halves)(const uint16_t* weight, int64_t stride, int64_t inputs, uint16_t* to);  // of f16
  // Blocks [first, last) of the rows of x.
  void (*prepare)(const PackedArgs&, const PackedRows&, int64_t first, int64_t last);
  // Outputs of groups [first, last) of blocks [first_block, last_block), one function for each size of the longer
  // blocks. `room` has a float for each of these outputs and rows, where there are several `parts`, or the one group,
  // opened.
  void (*multiply[kMostPackedRows])(const PackedArgs&, const PackedRows&, int64_t first_block, int64_t last_block,
                                    int64_t first, int64_t last, float* room);
  // Of q4_k and q6_k: opens a group for many blocks of rows, into a room of 32 floats for each word of a row.
  void (*open)(const PackedArgs&, int64_t group, float* room) = nullptr;
};

// The kernels of that name (amx, avx512, avx2, neon, neon_dot, portable), or null where this machine cannot run them
// or there are none. neon_dot has int8, q4_k and q6_k alone, amx bf16.
const PackedKernels* packed_kernels_named(const char* name, Packing packing);

// The fastest that this machine has, or those that PRELUDE_CPU_KERNELS names; null where there are none.
const PackedKernels* best_packed_kernels(Packing packing);

// Whether products of bf16 take less time than those of `widened`: tiles do, and vdpbf16ps on AMD's processors. On
// Intel's it is slower than the fused products of float32.
bool pairs_are_quick();

// Weights [outputs, inputs], `stride` values apart, to packed words. The scale of a block of int8 is its largest
// absolute value over 127 in float16. They are the outputs of a larger weight from `first` on; its parts are packed
// in their order. Values of 16 bits are float16 for f16, which takes no others, and else bfloat16.
void pack_weight(const float* weight, int64_t stride, int64_t outputs, int64_t inputs, Packing packing,
                 uint32_t* words, int64_t first = 0, int threads = 1);
void pack_weight(const uint16_t* weight, int64_t stride, int64_t outputs, int64_t inputs, Packing packing,
                 uint32_t* words, int64_t first = 0, int threads = 1);

// Asks for large pages for the whole ones of `count` bytes at `memory`, which is not written yet. Where the system
// has none nothing happens.
void prefer_large_pages(void* memory, size_t count);

// Rows of Q8_0 [outputs, blocks_of(inputs), kQ8Bytes] to packed words of int8, value for value. `inputs` is a
// multiple of kBlock.
void pack_q8(const uint8_t* rows, int64_t outputs, int64_t inputs, uint32_t* words);

// Rows of Q4_K or Q6_K to packed words of that packing. `inputs` is a multiple of kFewInputs.
void pack_few(const uint8_t* rows, int64_t outputs, int64_t inputs, Packing packing, uint32_t* words);

// The weights of `output` as floats [inputs].
void unpack_output(const PackedWeight& weight, int64_t output, float* to);

// Output `output` of one row of x in a packing that `quantizes`, without the bias: the bits that a whole product has.
// `room` holds row_words(inputs, packing) words.
float integer_pair(const PackedWeight& weight, const float* x, int64_t output, uint32_t* room);

// False: no memory for the rows of x.
bool packed_matmul(const PackedKernels& kernels, const PackedArgs& a, int threads);

}  // namespace prelude::cpu
