// Attention of decode rows: one new token each, over keys that lie in blocks of a pool. Block tables are read where
// they lie; nothing is gathered, nothing is padded.
//
//   q      [rows, heads, D]       the query heads of one KV head lie side by side: head h reads KV head h / group
//   pool   [slots, kv_heads, D]   key t of a row is slot  blocks[begin + t / size] * size + t % size
//
//   row, KV head ──▶ tiles of 64 keys ─┬─▶ scores      a product a key and head; W products folded by one tree
//                                      ├─▶ softmax     running maximum and sum: what came before is scaled down
//                                      └─▶ values      weights times V, added to the output
//
// A row's keys are always met in this order, alone or among others, so its bits do not depend on its company (they
// do on the vector width of the machine). Sums are float32, whatever the pool is in. A NaN or an infinity in a key
// that is read reaches the output; keys past a row's length are never looked at.
//
// Everything is borrowed for the call. check() looks at a table once; attend() trusts it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "prelude/cpu/parallel.hpp"

#if defined(__GNUC__) && (defined(__clang__) || __GNUC__ >= 12)
#define PRELUDE_VECTORS 1
#define PRELUDE_INLINE [[gnu::always_inline]] inline
#define PRELUDE_INLINE_LAMBDA __attribute__((always_inline))
#else  // one element at a time: correct, slow
#define PRELUDE_VECTORS 0
#define PRELUDE_INLINE inline
#define PRELUDE_INLINE_LAMBDA
#endif
#if PRELUDE_VECTORS && defined(__x86_64__)
#define PRELUDE_X86 1
#else
#define PRELUDE_X86 0
#endif

#if PRELUDE_VECTORS
// About passing vectors between functions: ours are all inlined. Told where templates are instantiated, at the end of
// the includer's file, so it stays off.
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

namespace prelude::paged {

struct Rows {
  const int32_t* blocks;   // block tables, end to end
  const int32_t* begins;   // where in them each row's begins,
  const int32_t* ends;     // and ends
  const int32_t* lengths;  // keys of each row, its own token among them
  int64_t count;
  int32_t block_size;
};

// A layer's pool. Elements are float, or bfloat16 as its 16 bits.
struct Pool {
  const void *k, *v;
  int32_t kv_heads, head_dim;
};

struct Queries {
  const void* q;  // row r begins at q + r * stride elements; its heads follow each other
  int64_t stride;
  void* out;      // [rows, heads, D], the element type of q
  int32_t heads;  // a multiple of kv_heads
  float scale;
};

struct RowsCheck {
  const char* wrong = nullptr;  // what is wrong with the first bad row
  int64_t row = -1;
  int64_t slots = 0;  // the pool must have so many
};

// `entries` is the length of `blocks`.
inline RowsCheck check(const Rows& rows, int64_t entries) {
  RowsCheck out;
  for (int64_t r = 0; r < rows.count; ++r) {
    const int64_t begin = rows.begins[r], end = rows.ends[r], length = rows.lengths[r];
    out.row = r;
    if (begin < 0 || end < begin || end > entries) return out.wrong = "its table is outside the blocks", out;
    if (length < 1) return out.wrong = "no token", out;
    if (length > (end - begin) * rows.block_size) return out.wrong = "more tokens than its table holds", out;
    for (int64_t b = begin; b < begin + (length + rows.block_size - 1) / rows.block_size; ++b) {
      if (rows.blocks[b] < 0) return out.wrong = "a block below 0", out;
      out.slots = std::max(out.slots, (int64_t{rows.blocks[b]} + 1) * rows.block_size);
    }
  }
  return out;
}

namespace detail {

inline constexpr int kTile = 64;
inline constexpr int kHeads = 4;  // query heads that share a pass over K and V

// ---------------------------------------------------------------- vectors of W floats

#if PRELUDE_VECTORS
template <int W>
struct VectorOf {
  typedef float type __attribute__((vector_size(W * sizeof(float))));
  typedef int32_t ints __attribute__((vector_size(W * sizeof(float))));
  typedef uint16_t halves __attribute__((vector_size(W * sizeof(uint16_t))));
};
#else
template <int W>
struct VectorOf;
#endif
template <>
struct VectorOf<1> {
  using type = float;
  using ints = int32_t;
};
template <int W>
using Vector = typename VectorOf<W>::type;
template <int W>
using Ints = typename VectorOf<W>::ints;

// std::bit_cast, which is not sure to be inlined where vectors are wider than the build's own.
template <typename To, typename From>
PRELUDE_INLINE To cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

template <int W>
PRELUDE_INLINE Vector<W> load(const float* p) {
  Vector<W> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// bfloat16 is the upper half of a float.
template <int W>
PRELUDE_INLINE Vector<W> load(const uint16_t* p) {
  if constexpr (W == 1) {
    return cast<float>(static_cast<uint32_t>(*p) << 16);
  } else {
#if PRELUDE_VECTORS
    typename VectorOf<W>::halves h;
    std::memcpy(&h, p, sizeof h);
    Ints<W> bits = __builtin_convertvector(h, Ints<W>) << 16;
    return cast<Vector<W>>(bits);
#endif
  }
}

template <int W>
PRELUDE_INLINE void store(float* p, const Vector<W>& v) {
  std::memcpy(p, &v, sizeof v);
}

PRELUDE_INLINE uint16_t to_bfloat16(float x) {  // to nearest, ties to even; NaN stays NaN
  uint32_t bits = cast<uint32_t>(x);
  if (x != x) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// e^x for x <= 0 to about one unit in the last place; at least e^-87.3, and NaN for NaN. The polynomial is Cephes'
// expf. Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
template <int W>
PRELUDE_INLINE Vector<W> exponential(const Vector<W>& given) {
  const Vector<W> zero{};
  const Vector<W> least = zero - 87.3f, magic = zero + 12582912.0f;
  const Vector<W> x = given < least ? least : given;
  const Vector<W> shifted = x * 1.44269504f + magic;
  const Vector<W> n = shifted - magic;
  const Vector<W> r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Vector<W> p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const Ints<W> power = (cast<Ints<W>>(shifted) - 0x4B400000 + 127) << 23;
  return p * cast<Vector<W>>(power);
}

#if PRELUDE_VECTORS
// [a0 + a1, a2 + a3, b0 + b1, b2 + b3], in each half of a vector of 8.
template <int W>
PRELUDE_INLINE void add_neighbours(Vector<W>* into, const Vector<W>& a, const Vector<W>& b) {
  if constexpr (W == 4) {
    *into = __builtin_shufflevector(a, b, 0, 2, 4, 6) + __builtin_shufflevector(a, b, 1, 3, 5, 7);
  } else {
    *into = __builtin_shufflevector(a, b, 0, 2, 8, 10, 4, 6, 12, 14) +
            __builtin_shufflevector(a, b, 1, 3, 9, 11, 5, 7, 13, 15);
  }
}
#endif

// The sum of each of W vectors, in their order. Consumes them.
template <int W>
PRELUDE_INLINE void store_sums(float* to, Vector<W>* parts) {
#if PRELUDE_VECTORS
  if constexpr (W > 1) {
    for (int i = 0; i < W / 2; ++i) add_neighbours<W>(&parts[i], parts[2 * i], parts[2 * i + 1]);
    for (int i = 0; i < W / 4; ++i) add_neighbours<W>(&parts[i], parts[2 * i], parts[2 * i + 1]);
  }
  if constexpr (W == 8) {
    parts[0] = __builtin_shufflevector(parts[0], parts[1], 0, 1, 2, 3, 8, 9, 10, 11) +
               __builtin_shufflevector(parts[0], parts[1], 4, 5, 6, 7, 12, 13, 14, 15);
  }
#endif
  store<W>(to, parts[0]);
}

// ---------------------------------------------------------------- a tile, up to kHeads heads of one KV head

template <int W, int G, typename T>
PRELUDE_INLINE void score_tile(const float* q, int D, const T* const* keys, int count, float* scores) {
  for (int at = 0; at < count; at += W) {
    Vector<W> parts[G][W];
    for (int i = 0; i < W; ++i) {
      const T* key = keys[std::min(at + i, count - 1)];
      for (int g = 0; g < G; ++g) parts[g][i] = Vector<W>{};
      for (int d = 0; d < D; d += W) {
        const Vector<W> k = load<W>(key + d);
        for (int g = 0; g < G; ++g) parts[g][i] += load<W>(q + g * D + d) * k;
      }
    }
    for (int g = 0; g < G; ++g) store_sums<W>(scores + g * kTile + at, parts[g]);
  }
}

// Scores become weights relative to the new maximum; the factor for what was summed before is returned. `scores` has
// room for whole vectors, and what is past `count` repeats a score.
template <int W>
PRELUDE_INLINE float soften(float* scores, int count, float& most, float& sum) {
  Vector<W> high = Vector<W>{} + most, total{};
  for (int i = 0; i < count; i += W) {
    const Vector<W> s = load<W>(scores + i);
    high = s > high ? s : high;
  }
  float lanes[W], highest = most, added = 0.0f;
  store<W>(lanes, high);
  for (float lane : lanes) highest = lane > highest ? lane : highest;
  const float factor = exponential<1>(most - highest);
  for (int i = 0; i < count; i += W) store<W>(scores + i, exponential<W>(load<W>(scores + i) - highest));
  for (int i = count; i % W; ++i) scores[i] = 0.0f;
  for (int i = 0; i < count; i += W) total += load<W>(scores + i);
  store<W>(lanes, total);
  for (float lane : lanes) added += lane;
  most = highest;
  sum = sum * factor + added;
  return factor;
}

template <int W, int G, typename T>
PRELUDE_INLINE void add_values(const float* weights, const float* factors, int D, const T* const* values, int count,
                               float* out) {
  constexpr int wide = W * G >= 64 ? 1 : 2;  // vectors of D a pass: accumulators stay in registers
  int d = 0;
  auto pass = [&]<int N>() PRELUDE_INLINE_LAMBDA {
    Vector<W> acc[G][N];
    for (int g = 0; g < G; ++g)
      for (int n = 0; n < N; ++n) acc[g][n] = load<W>(out + g * D + d + n * W) * factors[g];
    for (int t = 0; t < count; ++t) {
      for (int n = 0; n < N; ++n) {
        const Vector<W> v = load<W>(values[t] + d + n * W);
        for (int g = 0; g < G; ++g) acc[g][n] += v * weights[g * kTile + t];
      }
    }
    for (int g = 0; g < G; ++g)
      for (int n = 0; n < N; ++n) store<W>(out + g * D + d + n * W, acc[g][n]);
    d += N * W;
  };
  while (d + wide * W <= D) pass.template operator()<wide>();
  while (d < D) pass.template operator()<1>();
}

// A tile of keys, as where its slots begin in the pool (in elements).
struct Tile {
  int64_t slots[kTile];
  int count;
};

// G heads of one KV head, whose state `most`, `sum` and `out` [G, D] are carried from tile to tile.
template <int W, int G, typename T>
PRELUDE_INLINE void attend_heads(const Tile& tile, const T* k, const T* v, int D, const float* q, float* most,
                                 float* sum, float* out) {
  alignas(64) float scores[G * kTile];
  const T *keys[kTile], *values[kTile];
  float factors[G];
  for (int i = 0; i < tile.count; ++i) keys[i] = k + tile.slots[i], values[i] = v + tile.slots[i];
  score_tile<W, G>(q, D, keys, tile.count, scores);
  for (int g = 0; g < G; ++g) factors[g] = soften<W>(scores + g * kTile, tile.count, most[g], sum[g]);
  add_values<W, G>(scores, factors, D, values, tile.count, out);
}

template <int W, typename T>
PRELUDE_INLINE void attend_rows(const Rows& rows, const Pool& pool, const Queries& io, float* scratch) {
  const int D = pool.head_dim, heads = io.heads, group = heads / pool.kv_heads;
  const int64_t slot_width = int64_t{pool.kv_heads} * D, width = int64_t{heads} * D;
  float *q = scratch, *out = q + width, *most = out + width, *sum = most + heads;
  for (int64_t row = 0; row < rows.count; ++row) {
    const T* given = static_cast<const T*>(io.q) + row * io.stride;
    for (int64_t i = 0; i < width; ++i) q[i] = load<1>(given + i) * io.scale;
    std::fill(out, out + width, 0.0f);
    std::fill(most, most + heads, -std::numeric_limits<float>::infinity());
    std::fill(sum, sum + heads, 0.0f);
    const int32_t* block = rows.blocks + rows.begins[row];
    int32_t in_block = 0;
    for (int32_t at = 0; at < rows.lengths[row]; at += kTile) {
      Tile tile;
      tile.count = std::min<int32_t>(kTile, rows.lengths[row] - at);
      for (int i = 0; i < tile.count; ++i) {
        tile.slots[i] = (int64_t{*block} * rows.block_size + in_block) * slot_width;
        if (++in_block == rows.block_size) in_block = 0, ++block;
      }
      for (int head = 0; head < heads;) {
        // Four together, or two, or one; fewer sizes where vectors are short: each is compiled by itself.
        const int kv_head = head / group, left = (kv_head + 1) * group - head;
        const int together = W == 1 || left == 1 ? 1 : W == 4 || left < kHeads ? 2 : kHeads;
        const T* k = static_cast<const T*>(pool.k) + int64_t{kv_head} * D;
        const T* v = static_cast<const T*>(pool.v) + int64_t{kv_head} * D;
        auto run = [&]<int G>() PRELUDE_INLINE_LAMBDA {
          attend_heads<W, G, T>(tile, k, v, D, q + head * D, most + head, sum + head, out + head * D);
        };
        if (together == 1)
          run.template operator()<1>();
        else if constexpr (W > 1) {
          if (together == 2)
            run.template operator()<2>();
          else if constexpr (W > 4)
            run.template operator()<kHeads>();
        }
        head += together;
      }
    }
    T* wanted = static_cast<T*>(io.out) + row * width;
    for (int head = 0; head < heads; ++head) {
      const float by = 1.0f / sum[head];
      for (int64_t i = int64_t{head} * D; i < int64_t{head + 1} * D; ++i) {
        if constexpr (std::is_same_v<T, float>)
          wanted[i] = out[i] * by;
        else
          wanted[i] = to_bfloat16(out[i] * by);
      }
    }
  }
}

// One instance an instruction set: what is inlined into it is compiled for it.
template <int W, typename T>
void attend_base(const Rows& rows, const Pool& pool, const Queries& io, float* scratch) {
  attend_rows<W, T>(rows, pool, io, scratch);
}
#if PRELUDE_X86
template <typename T>
[[gnu::target("avx2,fma")]] void attend_avx2(const Rows& rows, const Pool& pool, const Queries& io, float* scratch) {
  attend_rows<8, T>(rows, pool, io, scratch);
}
#endif

}  // namespace detail

// Floats that attend() writes to while it runs: queries, outputs, maxima and sums of one row.
inline int64_t scratch_floats(const Pool& pool, const Queries& io) {
  return 2 * int64_t{io.heads} * (pool.head_dim + 1);
}

// Floats a vector: the most that this machine has and head_dim is a multiple of. (16 were measured: no faster than 8
// where memory is the limit, slower where the folding of products is.)
inline int vector_width(int head_dim) {
#if PRELUDE_X86
  static const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2 && head_dim % 8 == 0) return 8;
#endif
  return PRELUDE_VECTORS && head_dim % 4 == 0 ? 4 : 1;
}

// `width` is vector_width(), or a smaller one of 8, 4 and 1 that divides head_dim.
template <typename T>
void attend(const Rows& rows, const Pool& pool, const Queries& io, int width, float* scratch) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, uint16_t>, "float, or bfloat16 as bits");
  switch (width) {
#if PRELUDE_X86
    case 8:
      return detail::attend_avx2<T>(rows, pool, io, scratch);
#endif
#if PRELUDE_VECTORS
    case 4:
      return detail::attend_base<4, T>(rows, pool, io, scratch);
#endif
    default:
      return detail::attend_base<1, T>(rows, pool, io, scratch);
  }
}

// In _native/cpu/paged_attention.cpp.
extern template void attend<float>(const Rows&, const Pool&, const Queries&, int, float*);
extern template void attend<uint16_t>(const Rows&, const Pool&, const Queries&, int, float*);

// The same, row by row over threads; `scratch` is scratch_floats() for each of them.
template <typename T>
void attend_together(const Rows& rows, const Pool& pool, const Queries& io, int width, float* scratch, cpu::Fork fork,
                     int threads) {
  const int64_t room = scratch_floats(pool, io), values = int64_t{io.heads} * pool.head_dim;
  cpu::run_pieces(fork, threads, rows.count, [&](int64_t row, int thread) {
    Rows one = rows;
    one.begins += row, one.ends += row, one.lengths += row, one.count = 1;
    Queries its = io;
    its.q = static_cast<const T*>(io.q) + row * io.stride;
    its.out = static_cast<T*>(io.out) + row * values;
    attend<T>(one, pool, its, width, scratch + thread * room);
  });
}

}  // namespace prelude::paged
