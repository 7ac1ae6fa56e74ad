// K and V of a step's tokens, copied to their slots of the pool.
//
//   step   k [tokens, stride]  ── token tokens[i] (or i) ──▶  slot slots[i]   pool k [slots, values]
//
// Slots are distinct, so threads may each take a run of the list.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "prelude/cpu/parallel.hpp"
#include "prelude/cpu/row_work.hpp"
#include "prelude/cpu/types.hpp"

namespace prelude::cpu {

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
