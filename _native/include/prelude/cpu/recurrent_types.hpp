// The arguments of the kernels of recurrent layers: short convolutions and the gated delta rule.
//
// A layer keeps a state of each sequence, in an entry of memory that the caller owns. A step is a forest of segments:
// a root goes on from the state in its entry or from the initial one, a segment with a parent from the state at the
// parent's end. Tokens are worked on one after another, so the bits of a token depend on the tokens before it in its
// own sequence and on nothing else: not on the step, the other segments, or where a prompt was cut into chunks.
#pragma once

#include <cstdint>

#include "prelude/cpu/types.hpp"

namespace prelude::cpu {

// Segments in an order in which each one's parent comes before it. Built and checked by SequencePlan.
struct Segments {
  const int32_t* starts;   // [count + 1]: rows of the step
  const int32_t* parents;  // [count], -1 for a root
  const int32_t* load;     // [count]: the entry that a root goes on from; -1: the initial state, or it has a parent
  const int32_t* store;    // [count]: the entry that takes the state at the segment's end; -1: none
  const int32_t* history;  // [count][window]: see input_at
  int64_t count;
  int64_t window;  // inputs before a token that its convolution reads: one less than the kernel's length
};

inline constexpr int64_t kMostTaps = 64;  // of a convolution's kernel

// A convolution over the tokens of a sequence, each channel by itself:
//     out = activation(bias + sum over j of weight[j] * input(t - kernel + 1 + j)) * factor
// Inputs before the first token are 0. `out` may lie in rows of `x`, in other columns.
struct ConvolveArgs {
  const void* x;  // rows of `channels` values, `x_stride` apart
  void* out;
  const void* factor;   // rows `x_stride` apart, or null
  const float* weight;  // [kernel][channels]
  const float* bias;    // [channels] or null
  float* windows;       // [entries][kernel - 1][channels], entries `state_stride` apart: a sequence's last inputs
  int64_t x_stride;
  int64_t out_stride;
  int64_t state_stride;
  int64_t channels;
  int64_t kernel;
  Type type;  // of x and factor
  Type out_type;
  bool silu;
};

// A row of the gated delta rule: queries and keys of `key_heads` heads, values of `value_heads` heads, then a decay
// and a beta for each of these; float32. A key head serves value_heads / key_heads consecutive value heads.
struct DeltaShape {
  int64_t key_heads;
  int64_t value_heads;
  int64_t key_width;
  int64_t value_width;

  int64_t keys() const { return key_heads * key_width; }
  int64_t values() const { return value_heads * value_width; }
  int64_t decays() const { return 2 * keys() + values(); }  // where in a row they begin
  int64_t row() const { return decays() + 2 * value_heads; }
};

// Such a row is made of a projection: `conv` gives queries, keys and values; each query and key is divided by its
// length sqrt(sum of squares + 1e-6), a query by sqrt(key_width) as well; and of each value head
//     decay = exp(-rate * log(1 + exp(a + offset)))    beta = 1 / (1 + exp(-b))
struct DeltaInputArgs {
  ConvolveArgs conv;    // out: the rows, in float32
  const void* gates;    // b of all value heads, then a of all; rows conv.x_stride apart, of conv.type
  const float* rate;    // [value_heads]
  const float* offset;  // [value_heads]
  DeltaShape shape;
};

// S = decay * S;  S += k (v - k^T S) * beta;  out = q^T S, for every value head. `out` takes the place of v.
//
// A state is [value_heads][blocks][key_width][kStateColumns]: columns of S in blocks, those behind the last value 0.
struct DeltaArgs {
  float* rows;
  int64_t stride;
  float* states;
  int64_t state_stride;
  DeltaShape shape;
};

inline constexpr int64_t kStateColumns = 16;
constexpr int64_t state_blocks(const DeltaShape& s) { return (s.value_width + kStateColumns - 1) / kStateColumns; }
constexpr int64_t state_floats(const DeltaShape& s) {
  return s.value_heads * state_blocks(s) * s.key_width * kStateColumns;
}

// out = x * gate's sigmoid or silu, where `gain` is given of x after an RMSNorm of each head. `out` may be `x`.
struct GateArgs {
  const void* x;
  const void* gate;
  void* out;
  const float* gain;  // [width] or null
  int64_t x_stride;
  int64_t gate_stride;
  int64_t out_stride;
  int64_t heads;
  int64_t width;
  Type x_type;
  Type gate_type;  // and that of out
  float eps;
  bool silu;  // else sigmoid
};

// Entries of `history`: a row of the step; kNoInput: a token before the first one; else a row of an entry's window.
inline constexpr int32_t kNoInput = -1;
constexpr int32_t window_row(int64_t entry, int64_t window, int64_t row) {
  return static_cast<int32_t>(-2 - (entry * window + row));
}

// The input before a segment, `at` places from the oldest one in the window.
struct Input {
  int64_t row;    // of the step, or -1
  int64_t entry;  // or -1
  int64_t place;
};
constexpr Input input_at(const Segments& s, int64_t segment, int64_t at) {
  const int64_t entry = s.history[segment * s.window + at];
  if (entry >= 0) return {entry, -1, 0};
  if (entry == kNoInput) return {-1, -1, 0};
  return {-1, (-2 - entry) / s.window, (-2 - entry) % s.window};
}

}  // namespace prelude::cpu
