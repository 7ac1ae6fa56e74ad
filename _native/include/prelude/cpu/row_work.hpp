// Row kernels over all rows of a call: cut into pieces that keep a thread busy for some microseconds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>

#include "prelude/cpu/parallel.hpp"
#include "prelude/cpu/targets.hpp"
#include "prelude/status.hpp"

namespace prelude::cpu {

// A thread takes at least so many values: waking the others costs about as much as their work.
inline constexpr int64_t kPieceValues = 12'288;

// A value of these kernels takes about a quarter of a nanosecond: an estimate.
constexpr bool worth_releasing_gil(int64_t values) { return values / 4 > kReleaseGilNs; }

// kernel(args, first, last, room) over `rows` rows of `values` each. False: no memory for rows of bfloat16.
template <class Args, class Kernel>
bool over_rows(Kernel kernel, const Args& args, int64_t rows, int64_t values, bool needs_room, int threads) {
  threads = std::max(threads, 1);
  const int64_t least = std::max<int64_t>(1, kPieceValues / std::max<int64_t>(values, 1));
  const int64_t step = std::max(least, (rows + threads - 1) / threads);
  const int64_t pieces = (rows + step - 1) / step;
  float* room = nullptr;
  if (needs_room) {
    room = new (std::nothrow) float[static_cast<size_t>(values * std::max<int64_t>(pieces, 1))];
    if (room == nullptr) return false;
  }
  run_pieces(static_cast<int>(std::min<int64_t>(threads, pieces)), pieces, [&](int64_t i, int) {
    kernel(args, i * step, std::min(rows, (i + 1) * step), room == nullptr ? nullptr : room + i * values);
  });
  delete[] room;
  return true;
}

inline bool rms_norm(const Kernels& kernels, const NormArgs& args, int64_t rows, int threads) {
  return over_rows(kernels.rms_norm, args, rows, args.width, args.out_type != Type::f32, threads);
}
inline bool norm_rotate(const Kernels& kernels, const RotateArgs& args, int64_t rows, int threads) {
  return over_rows(kernels.norm_rotate, args, rows, args.heads * args.width, args.type != Type::f32, threads);
}
inline bool layer_norm(const Kernels& kernels, const NormArgs& args, int64_t rows, int threads) {
  return over_rows(kernels.layer_norm, args, rows, args.width, args.out_type != Type::f32, threads);
}
inline bool activate(const Kernels& kernels, const ActivateArgs& args, int64_t rows, int threads) {
  const int64_t values = args.gated ? 2 * args.inner : args.inner;
  return over_rows(kernels.activate, args, rows, values, args.type != Type::f32, threads);
}

// Rows of `width` values, `stride` apart, each by one thread.
inline void exp_sums(const Kernels& kernels, const float* x, int64_t stride, int64_t rows, int64_t width, float* most,
                     double* totals, int threads) {
  run_pieces(static_cast<int>(std::min<int64_t>(threads, rows)), rows,
             [&](int64_t row, int) { kernels.exp_sum(x + row * stride, width, most + row, totals + row); });
}

// K and V of a step's tokens, copied to their slots of the pool.
//
//   step   k [tokens, stride]  ── token tokens[i] (or i) ──▶  slot slots[i]   pool k [slots, values]
//
// Slots are distinct, so threads may each take a run of the list.
// All strides in values; a row of the pool has `values`, side by side.
struct PoolRowsArgs {
  const void* k;
  const void* v;
  void* pool_k;
  void* pool_v;
  int64_t k_stride;
  int64_t v_stride;
  int64_t values;
  const int64_t* tokens;  // null: the i-th row is token i
  const int64_t* slots;
  Type type;
};

constexpr bool all_below(const int64_t* numbers, int64_t count, int64_t bound) {
  uint64_t highest = 0;
  for (int64_t i = 0; i < count; ++i) highest = std::max(highest, static_cast<uint64_t>(numbers[i]));
  return count == 0 || highest < static_cast<uint64_t>(bound);
}

inline void write_pool(const PoolRowsArgs& args, int64_t rows, int threads) noexcept {
  const auto size = size_of(args.type);
  const auto bytes = static_cast<size_t>(args.values * size);
  const int64_t least = std::max<int64_t>(1, kPieceValues / std::max<int64_t>(2 * args.values, 1));
  threads = std::max(threads, 1);
  const int64_t step = std::max(least, (rows + threads - 1) / threads);
  const int64_t pieces = (rows + step - 1) / step;
  const auto copy = [&](const void* from, int64_t stride, void* to, int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t token = args.tokens == nullptr ? i : args.tokens[i];
      std::memcpy(static_cast<char*>(to) + args.slots[i] * args.values * size,
                  static_cast<const char*>(from) + token * stride * size, bytes);
    }
  };
  run_pieces(static_cast<int>(std::min<int64_t>(threads, pieces)), pieces, [&](int64_t piece, int) {
    const int64_t first = piece * step, last = std::min(rows, (piece + 1) * step);
    copy(args.k, args.k_stride, args.pool_k, first, last);
    copy(args.v, args.v_stride, args.pool_v, first, last);
  });
}

}  // namespace prelude::cpu
