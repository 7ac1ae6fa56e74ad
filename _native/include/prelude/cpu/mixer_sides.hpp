// A layer on the two sides of its mixer, each side in one call: norms, products, rotations and activations one after
// the other, over chunks of tokens, so that the wide intermediates stay in the cache.
//
//     before   x ─ norm ─ product ─ norm and rotation of heads ─▶ out
//     behind   mixed ─ product ─ + ─▶ x ─ norm ─ product ─ activation, gate ─ product ─ + ─▶ x
//
// The bits are those of the kernels when they are called one by one.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "prelude/cpu/packed_matmul.hpp"
#include "prelude/cpu/places.hpp"  // sysconf, where there is one
#include "prelude/cpu/row_work.hpp"

namespace prelude::cpu {

// The kernels of rows, and the threads that they run in.
struct Team {
  const Kernels* kernels;
  int threads;
};

enum class NormKind : int32_t { none = 0, rms = 1, layer = 2 };

struct Norm {
  NormKind kind = NormKind::none;
  float eps = 0;
  const float* gain = nullptr;  // [width], or null where the next weight has it inside
  const float* bias = nullptr;  // [width] or null; of layer norms only
};

struct Projection {
  const PackedKernels* kernels = nullptr;
  PackedWeight weight{};
  const Projection* behind = nullptr;  // of the outputs behind, which have another packing
};
inline int64_t outputs_of(const Projection& by) {
  return by.weight.outputs + (by.behind == nullptr ? 0 : outputs_of(*by.behind));
}

// Some heads of each row, normed and rotated in place; see RotateArgs. Without heads nothing turns.
struct Rotation {
  int64_t first = 0;  // values of a row before the first of these heads
  int64_t heads = 0;
  int64_t width = 0;
  float eps = 0;
  const float* gain = nullptr;  // [heads, width] or null
};

struct BeforeMixer {
  Norm norm;
  Projection projection;
  Rotation rotation;
};

struct BeforeArgs {
  const float* x;  // rows of the projection's inputs, `x_stride` apart
  int64_t x_stride;
  int64_t rows;
  int64_t chunk;  // rows at a time
  void* normed;   // room for `chunk` rows, side by side; not used without a norm
  void* out;      // rows of the projection's outputs, `out_stride` apart
  int64_t out_stride;
  Type type;  // of `normed` and `out`
  const float* rope_table;
  const int64_t* positions;  // [rows]
};

struct BehindMixer {
  Projection out;
  Projection up;
  Projection down;
  Norm mixer_norm;   // of the sum; not where `norm_first`
  Norm mlp_norm;     // before the MLP where `norm_first`, else of the sum behind it
  Norm mixer_after;  // of the mixer's output, before it is added,
  Norm mlp_after;    // and of the MLP's
  bool norm_first = true;
  bool gated = false;
  Activation activation = Activation::silu;
};

struct BehindArgs {
  float* x;  // rows of the residual stream, `x_stride` apart; the sums are added in place
  int64_t x_stride;
  const void* mixed;  // rows of the mixer's output, `mixed_stride` apart
  int64_t mixed_stride;
  Type mixed_type;
  int64_t rows;
  int64_t chunk;
  void* normed;  // room for `chunk` rows of x,
  void* up;      // of the MLP, `up_stride` apart,
  int64_t up_stride;
  float* sums;  // and of a product that is normed before it is added; null where none is
  Type type;    // of `normed` and `up`
};

namespace sides {

inline void* row_at(void* rows, int64_t row, int64_t stride, Type type) {
  return static_cast<char*>(rows) + row * stride * size_of(type);
}
inline const void* row_at(const void* rows, int64_t row, int64_t stride, Type type) {
  return static_cast<const char*>(rows) + row * stride * size_of(type);
}

inline bool norm_rows(const Team& team, const Norm& norm, const float* x, int64_t x_stride, void* out,
                      int64_t out_stride, Type type, int64_t rows, int64_t width) {
  const NormArgs args{x, x_stride, norm.gain, norm.bias, out, out_stride, type, width, norm.eps};
  return norm.kind == NormKind::layer ? layer_norm(*team.kernels, args, rows, team.threads)
                                      : rms_norm(*team.kernels, args, rows, team.threads);
}

inline bool multiply(const Team& team, const Projection& by, const void* x, int64_t x_stride, Type x_type, void* out,
                     int64_t out_stride, Type out_type, bool adds, int64_t rows) {
  for (const Projection* some = &by; some != nullptr; some = some->behind) {
    const PackedArgs args{some->weight, x, out, x_stride, out_stride, rows, x_type, out_type, adds};
    if (!packed_matmul(*some->kernels, args, team.threads)) return false;
    out = static_cast<char*>(out) + some->weight.outputs * size_of(out_type);
  }
  return true;
}

struct SumArgs {
  float* x;
  int64_t x_stride;
  const float* sums;  // rows of `width` values, side by side
  int64_t width;
};

inline void add_rows(const SumArgs& a, int64_t first, int64_t last, float*) {
  for (int64_t row = first; row < last; ++row)
    for (int64_t i = 0; i < a.width; ++i) a.x[row * a.x_stride + i] += a.sums[row * a.width + i];
}

// x += a product; normed before it is added where there is a norm.
inline bool add_product(const Team& team, const Projection& by, const Norm& after, const void* from,
                        int64_t from_stride, Type from_type, const BehindArgs& a, float* x, int64_t rows) {
  if (after.kind == NormKind::none)
    return multiply(team, by, from, from_stride, from_type, x, a.x_stride, Type::f32, true, rows);
  const int64_t width = outputs_of(by);
  if (!multiply(team, by, from, from_stride, from_type, a.sums, width, Type::f32, false, rows) ||
      !norm_rows(team, after, a.sums, width, a.sums, width, Type::f32, rows, width))
    return false;
  const SumArgs args{x, a.x_stride, a.sums, width};
  return over_rows(add_rows, args, rows, width, false, team.threads);
}

// A thread that takes rows through a whole side reads all of its weights. Those that fit into the cache of its own
// processor pay from few rows on, others stay in the cache that the processors share.
inline constexpr int64_t kOwnBytes = 3 << 19, kOwnRows = 8, kSharedBytes = 16 << 20, kSharedRows = 32;

inline int64_t own_bytes() {
#ifdef _SC_LEVEL2_CACHE_SIZE
  static const int64_t told = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (told > kOwnBytes) return told;
#endif
  return kOwnBytes;  // beside 512 KB 1.4 MB of int8 pay too, 1.8 MB of float32 do not
}

// Parts of `rows` that threads take through a side, of many rows several for each: one may be kept from running.
inline int64_t parts_of(int64_t rows, int64_t bytes, int threads) {
  const int64_t least = threads * (bytes > own_bytes() ? kSharedRows : kOwnRows);
  return bytes > kSharedBytes || rows < least ? 1 : threads * std::clamp<int64_t>(rows / (2 * least), 1, 4);
}

inline int64_t bytes_of(const Projection& by) {
  return packed_words(by.weight.outputs, by.weight.inputs, by.weight.packing) * 4 +
         (by.behind == nullptr ? 0 : bytes_of(*by.behind));
}

// work(first row, rows, first row of the room, team) for chunks of `chunk` rows, one after the other. Where a chunk
// has rows enough for all threads, each takes parts of them through the whole side: they wait for each other once,
// and the intermediates stay in a thread's own cache. Else the threads share each operation. False: a call of work
// was.
template <class Work>
bool over_chunks(int64_t rows, int64_t chunk, int64_t bytes, const Team& team, const Work& work) {
  for (int64_t first = 0; first < rows; first += chunk) {
    const int64_t some = std::min(chunk, rows - first), parts = parts_of(some, bytes, team.threads);
    if (team.threads < 2 || parts < team.threads) {
      if (!work(first, some, 0, team)) return false;
      continue;
    }
    std::atomic<bool> done{true};
    run_pieces(team.threads, parts, [&](int64_t i, int) {
      const int64_t from = i * some / parts, to = (i + 1) * some / parts;
      if (!work(first + from, to - from, from, Team{team.kernels, 1})) done.store(false, std::memory_order_relaxed);
    });
    if (!done.load(std::memory_order_relaxed)) return false;
  }
  return true;
}

// See run_before: `rows` rows from `first` on, with the room from row `at` on.
inline bool before_rows(const BeforeMixer& part, const BeforeArgs& a, int64_t first, int64_t rows, int64_t at,
                        const Team& team) {
  const int64_t inputs = part.projection.weight.inputs;
  const float* x = a.x + first * a.x_stride;
  const void* read = x;
  int64_t stride = a.x_stride;
  Type type = Type::f32;
  if (part.norm.kind != NormKind::none) {
    void* normed = row_at(a.normed, at, inputs, a.type);
    if (!norm_rows(team, part.norm, x, a.x_stride, normed, inputs, a.type, rows, inputs)) return false;
    read = normed, stride = inputs, type = a.type;
  }
  void* out = row_at(a.out, first, a.out_stride, a.type);
  if (!multiply(team, part.projection, read, stride, type, out, a.out_stride, a.type, false, rows)) return false;
  const Rotation& turn = part.rotation;
  if (turn.heads == 0) return true;
  void* heads = static_cast<char*>(out) + turn.first * size_of(a.type);
  const RotateArgs args{heads,      a.out_stride, heads,        a.out_stride,       a.type, turn.gain, turn.heads,
                        turn.width, turn.eps,     a.rope_table, a.positions + first};
  return norm_rotate(*team.kernels, args, rows, team.threads);
}

// See run_behind, and before_rows.
inline bool behind_rows(const BehindMixer& part, const BehindArgs& all, int64_t first, int64_t rows, int64_t at,
                        const Team& team) {
  const int64_t width = part.up.weight.inputs, made = outputs_of(part.up);
  BehindArgs a = all;
  a.normed = row_at(all.normed, at, width, all.type);
  a.up = row_at(all.up, at, all.up_stride, all.type);
  if (all.sums != nullptr) a.sums = all.sums + at * width;
  float* x = a.x + first * a.x_stride;
  const void* mixed = row_at(a.mixed, first, a.mixed_stride, a.mixed_type);
  if (!add_product(team, part.out, part.mixer_after, mixed, a.mixed_stride, a.mixed_type, a, x, rows)) return false;
  const void* read = x;
  int64_t stride = a.x_stride;
  Type type = Type::f32;
  if (part.norm_first) {
    if (!norm_rows(team, part.mlp_norm, x, a.x_stride, a.normed, width, a.type, rows, width)) return false;
    read = a.normed, stride = width, type = a.type;
  } else if (part.mixer_norm.kind != NormKind::none) {
    if (!norm_rows(team, part.mixer_norm, x, a.x_stride, x, a.x_stride, Type::f32, rows, width)) return false;
  }
  if (!multiply(team, part.up, read, stride, type, a.up, a.up_stride, a.type, false, rows)) return false;
  const ActivateArgs args{a.up, a.up_stride, a.type, part.gated ? made / 2 : made, part.activation, part.gated};
  if (!activate(*team.kernels, args, rows, team.threads) ||
      !add_product(team, part.down, part.mlp_after, a.up, a.up_stride, a.type, a, x, rows))
    return false;
  return part.norm_first || norm_rows(team, part.mlp_norm, x, a.x_stride, x, a.x_stride, Type::f32, rows, width);
}

}  // namespace sides

// False: no memory for a row; what was computed by then is written.
inline bool run_before(const BeforeMixer& part, const BeforeArgs& a, const Team& team) {
  return sides::over_chunks(a.rows, a.chunk, sides::bytes_of(part.projection), team,
                            [&](int64_t first, int64_t rows, int64_t at, const Team& threads) {
                              return sides::before_rows(part, a, first, rows, at, threads);
                            });
}

// See run_before.
inline bool run_behind(const BehindMixer& part, const BehindArgs& a, const Team& team) {
  const int64_t weights = sides::bytes_of(part.out) + sides::bytes_of(part.up) + sides::bytes_of(part.down);
  return sides::over_chunks(a.rows, a.chunk, weights, team,
                            [&](int64_t first, int64_t rows, int64_t at, const Team& threads) {
                              return sides::behind_rows(part, a, first, rows, at, threads);
                            });
}

// Whether other threads should run meanwhile: some ten nanoseconds for each product of a thousand.
inline bool worth_releasing_gil(const Projection& by, int64_t rows) {
  return rows * by.weight.inputs * outputs_of(by) / 100 > kReleaseGilNs;
}

}  // namespace prelude::cpu
