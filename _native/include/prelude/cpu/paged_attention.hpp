// Attention of decode rows: one new token each, over keys that lie in blocks of a pool. Block tables are read where
// they lie; nothing is gathered, nothing is padded.
//
//   q      [rows, heads, D]       the query heads of one KV head lie side by side: head h reads KV head h / group
//   pool   [slots, kv_heads, D]   where the keys of a row lie in it: see BlockTables
//
// check() looks at tables once; attend_paged() trusts them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "prelude/cpu/parallel.hpp"
#include "prelude/cpu/targets.hpp"

namespace prelude::cpu {

struct TablesCheck {
  const char* wrong = nullptr;  // the error of the first bad row
  int64_t row = -1;
  int64_t slots = 0;  // the pool must have so many
};

// `entries` is the length of `blocks`.
inline TablesCheck check(const BlockTables& tables, int64_t entries) {
  TablesCheck out;
  for (int64_t r = 0; r < tables.count; ++r) {
    const int64_t begin = tables.begins[r], end = tables.ends[r], length = tables.lengths[r];
    const int64_t size = tables.block_size, offset = tables.offsets ? tables.offsets[r] : 0;
    out.row = r;
    if (begin < 0 || end < begin || end > entries) return out.wrong = "its table is outside the blocks", out;
    if (length < 1) return out.wrong = "no token", out;
    if (offset < 0 || offset >= size) return out.wrong = "its keys do not begin in its first block", out;
    if (offset + length > (end - begin) * size) return out.wrong = "more tokens than its table holds", out;
    for (int64_t b = begin; b < begin + (offset + length + size - 1) / size; ++b) {
      if (tables.blocks[b] < 0) return out.wrong = "a block below 0", out;
      out.slots = std::max(out.slots, (int64_t{tables.blocks[b]} + 1) * size);
    }
  }
  return out;
}

// Floats that a row is worked on in.
constexpr int64_t paged_room(const PagedArgs& a) {
  constexpr int64_t most_lanes = 16;
  return a.heads * 2 * ((a.width + most_lanes - 1) / most_lanes * most_lanes + 1);
}

// Rows over threads, and the KV heads of a row too where there are fewer rows than threads. `room` is paged_room()
// for each thread.
inline void attend_paged(const Kernels& kernels, const PagedArgs& a, float* room, int threads) {
  const int64_t apart = paged_room(a), rows = a.tables.count, group = a.heads / a.kv_heads;
  const int64_t wanted = rows > 0 ? std::min<int64_t>((threads + rows - 1) / rows, a.kv_heads) : 1;
  const int64_t step = (a.kv_heads + wanted - 1) / wanted, parts = (a.kv_heads + step - 1) / step;
  run_pieces(threads, rows * parts, [&](int64_t piece, int thread) {
    const int64_t first = piece % parts * step, last = std::min<int64_t>(first + step, a.kv_heads);
    kernels.attend_row(a, piece / parts, static_cast<int>(first * group), static_cast<int>(last * group),
                       room + thread * apart);
  });
}

}  // namespace prelude::cpu
