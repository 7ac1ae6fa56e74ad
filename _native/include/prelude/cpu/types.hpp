// The arguments of the CPU kernels: plain structs over memory that the caller owns.
//
// Every kernel gives a row the same bits with any other rows: sums run in an order that the row's own
// shape and position fix, tails go through the same vector operations as whole vectors, and work is cut over
// threads between rows, never inside one.
#pragma once

#include <cstdint>

namespace prelude::cpu {

enum class Type : int32_t { f32 = 0, bf16 = 1 };
constexpr int64_t size_of(Type type) { return type == Type::f32 ? 4 : 2; }

// Rows of `width` values, `stride` values apart. `out` may be `x`.
struct NormArgs {
  const float* x;
  int64_t x_stride;
  const float* gain;  // [width], or null where the next weight has it inside
  const float* bias;  // [width] or null; of layer norms only
  void* out;
  int64_t out_stride;
  Type out_type;
  int64_t width;
  float eps;
};

// Norm per head and rotary embedding. A row is `heads` heads of `width` values, the two halves of a head interleaved.
// In place where `out` is `in`.
struct RotateArgs {
  const void* in;
  int64_t in_stride;
  void* out;
  int64_t out_stride;
  Type type;
  const float* gain;  // [heads, width], or null for models without that norm
  int64_t heads;
  int64_t width;  // even
  float eps;
  const float* rope_table;  // [positions, width]: cosine and sine of each pair, side by side
  const int64_t* positions;
};

// relu: max(x, 0). silu: x / (1 + exp(-x)). gelu: x * Phi(x), by erf. gelu_tanh: its form with tanh.
enum class Activation : int32_t { silu = 0, gelu = 1, gelu_tanh = 2, relu = 3 };

// The activation of the first `inner` values of each row, in place. `gated`: a row has `inner` values more, by which
// the result is multiplied.
struct ActivateArgs {
  void* rows;
  int64_t stride;
  Type type;
  int64_t inner;
  Activation kind;
  bool gated;
};

// A run of keys that lie in a row, of this step or of the pool.
struct KeyRun {
  int64_t from;
  int64_t length;
  bool pool;
};

// Queries [first, last) of a plan on one KV head: the unit of work of a thread.
struct AttentionUnit {
  int32_t item;
  int32_t kv_head;
  int32_t first;
  int32_t last;
  int32_t keys;        // the first so many of the item's keys are seen by some of these queries,
  int32_t from;        // those before this one by none of them; a multiple of kKeyAlignment
  int32_t packed = 0;  // behind it, which the room holds from the thread's unit before; a multiple of kKeyAlignment
};

// The relative term of DeBERTa, of one layer: to the product of query and key are added
//     query . keys[row] + key . queries[row],   row = rows[span - 1 + distance],
// where distance is the query's place minus the key's. Rows do not fall with the distance. Null pointers: no such
// term. It needs as many heads of keys as of queries, and a plan with places.
struct RelativeTerm {
  const float* keys = nullptr;     // [heads][panels][width][lanes of the kernels]: vectors of a row in one lane
  const float* queries = nullptr;  // the same, times the scale
  const int32_t* rows = nullptr;   // [2 * span - 1]
  int64_t span = 0;                // more than any distance
};

// One layer's tensors: a row holds all its heads of `width` values side by side; strides are in values.
struct AttentionTensors {
  const void* q;
  const void* k;
  const void* v;
  const void* pool_k;
  const void* pool_v;
  void* out;  // [queries, heads * width]
  int64_t q_stride;
  int64_t k_stride;
  int64_t v_stride;
  int64_t pool_stride;
  int64_t out_stride;
  Type type;
  RelativeTerm relative{};
  const int32_t* places = nullptr;  // of queries in their items; the plan sets it
  int64_t first_query = 0;          // the query that the first row of q and out is; the plan sets it
};

// Block tables of decode rows: key t of row r is slot  blocks[begins[r] + u / size] * size + u % size  of a pool,
// with u = t + offsets[r].
struct BlockTables {
  const int32_t* blocks;   // the tables, end to end
  const int32_t* begins;   // where in them each row's begins,
  const int32_t* ends;     // and ends
  const int32_t* lengths;  // keys of each row, its own token among them
  const int32_t* offsets;  // where in its first block each row's keys begin, below `block_size`; null: at 0
  int64_t count;
  int32_t block_size;
};

// One layer of decode rows: a query per row and head over a pool of [slots, kv_heads, width].
struct PagedArgs {
  BlockTables tables;
  const void* q;  // rows of [heads, width], `q_stride` values apart
  const void* k;
  const void* v;
  void* out;  // [rows, heads, width]
  int64_t q_stride;
  int32_t heads;  // a multiple of kv_heads
  int32_t kv_heads;
  int32_t width;
  float scale;
  float cap;  // as in AttentionShape
  Type type;
};

// A key's place in a vector is its place in the item modulo the vector's length, wherever a unit begins: so the sums
// of a query do not depend on the queries beside it.
inline constexpr int32_t kKeyAlignment = 16;

struct AttentionShape {
  int32_t heads;
  int32_t kv_heads;
  int32_t width;
  float scale;
  float cap;                    // a score becomes cap * tanh(score / cap); 0: it stays
  int32_t relative_panels = 0;  // of a RelativeTerm: panels of a head; 0 where there is none
};

// --- recurrent layers: short convolutions and the gated delta rule -------------------------------------------
//
// A layer keeps a state of each sequence, in an entry of memory that the caller owns. A step is a forest of segments:
// a root goes on from the state in its entry or from the initial one, a segment with a parent from the state at the
// parent's end. Tokens are worked on one after another, so the bits of a token depend on the tokens before it in its
// own sequence and on nothing else: not on the step, the other segments, or where a prompt was cut into chunks.

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
