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
  int32_t keys;  // the first so many of the item's keys are seen by some of these queries,
  int32_t from;  // those before this one by none of them; a multiple of kKeyAlignment
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

}  // namespace prelude::cpu
