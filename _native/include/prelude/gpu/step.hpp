// The arrays of a plain step for a device: prompts without parents and without cached context, or decode rows, and
// one readout. Which sizes it has (`measure`), and its arrays in the places of a recorded shape (`fill`).
//
//   measure   batch ─▶ Counts: exact sizes, and the sizes of the shape that serves it. false: the step is not plain,
//             or an index is out of bounds; the caller's general path serves it or names the mistake
//   fill      batch, Places of a recorded shape ─▶ one area of bytes; the rows behind the batch are padding
//
// The definitions are those of prelude/cuda/layout.py and shapes.py, which serve every step; tests hold both to the
// same bytes.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

namespace prelude::gpu {

struct Prompts {
  const int32_t *ids, *positions, *starts, *parents, *contexts, *slots;  // slots may be null
  int64_t tokens, segments;
};

struct Decoding {
  const int32_t *ids, *positions, *slots, *contexts, *indptr, *blocks;
  int64_t rows, held;
};

struct Limits {
  int32_t block_size, vocab, positions, blocks, pending;
  int64_t rows;        // of a step
  int32_t long_query;  // tokens of a prompt from which on another kernel serves it
  int32_t split_keys;  // keys up to which a decode row is never split
  int32_t whole_rows;  // decode rows from which on none is split
  bool cut;            // a last layer with fewer queries is allowed
};

struct Counts {
  int32_t prompts, own, longest, read_prompts, decoding, pages, read_decoding;
  int32_t spare;  // padded decode rows
  bool cut, long_query, split;
  int64_t attended;
};

// Where arrays begin, in bytes; below 0: the shape has no such array.
struct Places {
  int64_t ids, positions, slots, read, read_positions, qo, kv, last_qo, indptr, last, pages;
  int64_t lengths, lengths_end;  // the arrays that a plan depends on, which are compared as one run of bytes
  int32_t prompts, own, decoding, entries, read_prompts, read_decoding, scratch_block;
};

inline int32_t power_bucket(int32_t count, int32_t least = 1) {
  if (count <= 0) return 0;
  return std::max<int32_t>(least, static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(count))));
}

// 32 tokens to 256, then 64, and from 4,096 on a 64th of the largest power of two below.
inline int32_t token_bucket(int32_t count) {
  if (count <= 0) return 0;
  int32_t step = count <= 256 ? 32 : 64;
  while (step * 64 <= count && step < (1 << 20)) step *= 2;
  return (count + step - 1) / step * step;
}

inline bool ascending(const int32_t* rows, int64_t count, int32_t limit) {
  int32_t before = -1;
  for (int64_t i = 0; i < count; ++i) {
    if (rows[i] <= before) return false;
    before = rows[i];
  }
  return before < limit;
}

inline bool within(const int32_t* values, int64_t count, int32_t least, int32_t limit) {
  bool inside = true;  // without a branch: such a loop is vectorised
  for (int64_t i = 0; i < count; ++i) inside &= values[i] >= least && values[i] < limit;
  return inside;
}

inline bool measure_prompts(const Prompts& p, const int32_t* rows, int64_t reads, const Limits& limits, Counts& out) {
  if (p.segments < 1 || p.tokens < 1 || p.tokens > limits.rows || reads < 1) return false;
  if (p.starts[0] != 0 || p.starts[p.segments] != p.tokens) return false;
  if (!ascending(rows, reads, static_cast<int32_t>(p.tokens))) return false;
  if (!within(p.ids, p.tokens, 0, limits.vocab) || !within(p.positions, p.tokens, 0, limits.positions)) return false;
  const int64_t slots = int64_t{limits.blocks} * limits.block_size;
  if (p.slots != nullptr && !within(p.slots, p.tokens, -1, static_cast<int32_t>(std::min<int64_t>(slots, INT32_MAX))))
    return false;
  out = {};
  out.cut = limits.cut && reads < p.tokens;
  int64_t next = 0;  // of the reads
  for (int64_t s = 0; s < p.segments; ++s) {
    const int32_t length = p.starts[s + 1] - p.starts[s];
    if (length < 0 || p.parents[s] >= 0 || p.contexts[s] > 0) return false;
    if (length == 0) continue;
    ++out.own;
    out.longest = std::max(out.longest, length);
    out.attended += int64_t{length} * (length + 1) / 2;
    for (; next < reads && rows[next] < p.starts[s + 1]; ++next) out.cut &= rows[next] == p.starts[s + 1] - 1;
  }
  out.prompts = static_cast<int32_t>(p.tokens);
  out.read_prompts = static_cast<int32_t>(reads);
  out.long_query = out.longest >= limits.long_query;
  return true;
}

inline bool measure_decoding(const Decoding& d, const int32_t* rows, int64_t reads, const Limits& limits,
                             Counts& out) {
  if (d.rows < 1 || d.rows > limits.rows || reads < 1 || d.indptr[0] != 0 || d.indptr[d.rows] > d.held) return false;
  if (!ascending(rows, reads, static_cast<int32_t>(d.rows))) return false;
  if (!within(d.ids, d.rows, -limits.pending, limits.vocab)) return false;
  if (!within(d.positions, d.rows, 0, limits.positions)) return false;
  const int64_t slots = int64_t{limits.blocks} * limits.block_size;
  if (!within(d.slots, d.rows, -1, static_cast<int32_t>(std::min<int64_t>(slots, INT32_MAX)))) return false;
  out = {};
  int32_t longest = 0;
  int64_t pages = 0;
  for (int64_t b = 0; b < d.rows; ++b) {
    if (d.contexts[b] < 0 || d.contexts[b] == INT32_MAX) return false;
    const int32_t length = d.contexts[b] + 1, need = (length - 1) / limits.block_size + 1;
    if (d.indptr[b + 1] < d.indptr[b] || need > d.indptr[b + 1] - d.indptr[b]) return false;
    if (!within(d.blocks + d.indptr[b], need, 0, limits.blocks)) return false;
    longest = std::max(longest, length);
    pages += need;
    out.attended += length;
  }
  if (pages > (1 << 30)) return false;
  out.decoding = static_cast<int32_t>(d.rows);
  out.pages = static_cast<int32_t>(pages);
  out.read_decoding = static_cast<int32_t>(reads);
  out.spare = power_bucket(out.decoding) - out.decoding;
  out.split = longest > limits.split_keys && out.decoding < limits.whole_rows;
  return true;
}

namespace detail {

template <class T>
inline void put(char* area, int64_t at, const T* values, int64_t count, int64_t capacity, T rest) {
  T* target = reinterpret_cast<T*>(area + at);
  std::memcpy(target, values, static_cast<size_t>(count) * sizeof(T));
  std::fill(target + count, target + capacity, rest);
}

}  // namespace detail

inline void fill_prompts(const Prompts& p, const int32_t* rows, int64_t reads, const Places& to, char* area) {
  using detail::put;
  put(area, to.ids, p.ids, p.tokens, to.prompts, 0);
  put(area, to.positions, p.positions, p.tokens, to.prompts, 0);
  put(area, to.slots, p.slots, p.slots == nullptr ? 0 : p.tokens, to.prompts, -1);
  put(area, to.read, rows, reads, to.read_prompts, 0);
  auto* positions = reinterpret_cast<int32_t*>(area + to.read_positions);
  for (int64_t i = 0; i < reads; ++i) positions[i] = p.positions[rows[i]];
  std::fill(positions + reads, positions + to.read_prompts, 0);
  std::memset(area + to.lengths, 0, static_cast<size_t>(to.lengths_end - to.lengths));
  auto* qo = reinterpret_cast<int32_t*>(area + to.qo);
  auto* last = to.last_qo < 0 ? nullptr : reinterpret_cast<int32_t*>(area + to.last_qo);
  int64_t at = 0, next = 0;
  qo[0] = 0;
  if (last != nullptr) last[0] = 0;
  for (int64_t s = 0; s < p.segments; ++s) {
    if (p.starts[s + 1] == p.starts[s]) continue;
    while (next < reads && rows[next] < p.starts[s + 1]) ++next;
    qo[++at] = p.starts[s + 1];
    if (last != nullptr) last[at] = static_cast<int32_t>(next);
  }
  std::fill(qo + at + 1, qo + to.own + 1, qo[at]);
  if (last != nullptr) std::fill(last + at + 1, last + to.own + 1, last[at]);
  std::memcpy(area + to.kv, qo, static_cast<size_t>(to.own + 1) * sizeof(int32_t));
}

inline void fill_decoding(const Decoding& d, const int32_t* rows, int64_t reads, int32_t block_size, const Places& to,
                          char* area) {
  using detail::put;
  put(area, to.ids, d.ids, d.rows, to.decoding, 0);
  put(area, to.positions, d.positions, d.rows, to.decoding, 0);
  put(area, to.slots, d.slots, d.rows, to.decoding, to.scratch_block * block_size);
  put(area, to.read, rows, reads, to.read_decoding, 0);
  auto* positions = reinterpret_cast<int32_t*>(area + to.read_positions);
  for (int64_t i = 0; i < reads; ++i) positions[i] = d.positions[rows[i]];
  std::fill(positions + reads, positions + to.read_decoding, 0);
  std::memset(area + to.lengths, 0, static_cast<size_t>(to.lengths_end - to.lengths));
  auto* indptr = reinterpret_cast<int32_t*>(area + to.indptr);
  auto* last = reinterpret_cast<int32_t*>(area + to.last);
  auto* pages = reinterpret_cast<int32_t*>(area + to.pages);
  int32_t at = 0;
  indptr[0] = 0;
  for (int64_t b = 0; b < d.rows; ++b) {
    const int32_t need = d.contexts[b] / block_size + 1;
    std::memcpy(pages + at, d.blocks + d.indptr[b], static_cast<size_t>(need) * sizeof(int32_t));
    at += need;
    indptr[b + 1] = at;
    last[b] = d.contexts[b] % block_size + 1;
  }
  std::fill(pages + at, pages + to.entries, to.scratch_block);
  for (int64_t b = d.rows; b < to.decoding; ++b) {
    indptr[b + 1] = ++at;
    last[b] = 1;
  }
}

// prelude/readouts/draw.py: a number in [0, 1) of each (seed, step).
inline double uniform(uint64_t seed, int32_t step) {
  const auto mix = [](uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  };
  const uint64_t z = mix(mix(seed) + (static_cast<uint64_t>(static_cast<int64_t>(step)) + 1) * 0x9E3779B97F4A7C15u);
  return static_cast<double>(z >> 11) * 0x1p-53;
}

}  // namespace prelude::gpu
