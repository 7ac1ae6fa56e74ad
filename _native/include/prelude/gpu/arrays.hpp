// What step.hpp reads and writes: the arrays of a batch, the sizes of a step, and where a shape has its arrays.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace prelude::gpu {

struct Prompts {
  const int32_t *ids, *positions, *starts, *parents, *contexts, *context_indptr, *context_blocks;
  const int32_t* slots;  // may be null
  int64_t tokens, segments, held;
};

struct Decoding {
  const int32_t *ids, *positions, *slots, *contexts, *indptr, *blocks;
  int64_t rows, held;
};

// Rows of one readout: tokens of the prompts, or decode rows.
struct Reads {
  const int32_t* rows;
  int64_t count;
  bool of_decoding;
};

struct Limits {
  int32_t block_size, vocab, positions, blocks, pending;
  int64_t rows;         // of a step
  int32_t seen_whole;   // positions up to which no window of a layer leaves anything out
  int32_t long_query;   // tokens of a prompt from which on another kernel serves it
  int32_t split_keys;   // keys up to which those of a row are never split
  int32_t whole_rows;   // decode rows from which on none is split
  int32_t whole_tiles;  // tiles of prompts from which on none is
  int32_t group;        // query heads that share a key
  bool by_keys;         // all other steps list the keys of every row; else only those that a window cuts
};

// `keys`: of the lists of all rows together; 0 for a step without lists.
struct Counts {
  int32_t prompts, own, longest, read_prompts, decoding, pages, read_decoding, keys;
  int32_t spare;  // padded decode rows
  bool cut, long_query, split;
  int64_t attended;
};

// Requests over all prompt rows, each with its pages: all of them full but the last, which has `last` keys. Pages of
// the pool, or of one token each, rows of this step.
struct Level {
  std::vector<int32_t> qo, indptr, pages, last, last_qo;
  int32_t page_size;
  bool pool, split;

  void clear(int32_t size, bool of_pool) {
    page_size = size, pool = of_pool, split = false;
    qo.assign(1, 0);
    indptr.assign(1, 0);
    pages.clear();
    last.clear();
    last_qo.clear();
  }
  int32_t requests() const { return static_cast<int32_t>(last.size()); }
  void request(int32_t end, int32_t keys) {
    qo.push_back(end);
    indptr.push_back(static_cast<int32_t>(pages.size()));
    last.push_back(keys);
  }
  // Tiles of the queries of `rows`, as FlashInfer counts them for a graph.
  int64_t tiles(int32_t rows, int32_t group) const {
    constexpr int64_t tile = 128;
    return (int64_t{rows} * group + tile - 1) / tile + requests() - 1;
  }
  // Rows up to `first` that read nothing stand in a request without keys.
  void skip_to(int32_t first) {
    if (first > qo.back()) request(first, 0);
  }
  int64_t most_keys() const {
    int64_t most = 0;
    for (size_t r = 0; r < last.size(); ++r)
      if (indptr[r + 1] > indptr[r])
        most = std::max(most, int64_t{indptr[r + 1] - indptr[r] - 1} * page_size + last[r]);
    return most;
  }
};

// Where arrays begin, in bytes; below 0: the shape has no such array.
struct LevelPlaces {
  int64_t qo, indptr, last, pages, last_qo;
  int32_t requests, entries;
};

struct Places {
  int64_t ids, positions, slots, read, read_positions, qo, kv, last_qo, indptr, last, pages;
  int64_t keys, first, count, read_first, read_count;
  int64_t lengths, lengths_end;  // the arrays that a plan depends on, which are compared as one run of bytes
  int32_t prompts, own, decoding, entries, read_prompts, read_decoding, scratch_block, listed;
  std::vector<LevelPlaces> more;
};

inline int32_t power_bucket(int32_t count, int32_t least = 1) {
  if (count <= 0) return 0;
  return std::max<int32_t>(least, static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(count))));
}

// Multiples of 32 to 256, then of 64.
inline int32_t token_bucket(int32_t count) {
  if (count <= 0) return 0;
  const int32_t step = count <= 256 ? 32 : 64;
  return (count + step - 1) / step * step;
}

namespace detail {

inline bool within(const int32_t* values, int64_t count, int32_t least, int32_t limit) {
  bool inside = true;  // without a branch: such a loop is vectorised
  for (int64_t i = 0; i < count; ++i) inside &= values[i] >= least && values[i] < limit;
  return inside;
}

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream said;
  (said << ... << parts);
  throw std::invalid_argument(said.str());
}

// On the device an index out of bounds would end the context.
inline void check(const char* name, const int32_t* values, int64_t count, int32_t least, int32_t limit) {
  if (within(values, count, least, limit)) return;
  const int32_t* bad = std::find_if(values, values + count, [=](int32_t v) { return v < least || v >= limit; });
  refuse(name, " ", *bad, " is out of bounds: ", least, " to ", int64_t{limit} - 1);
}

template <class T>
inline void put(char* area, int64_t at, const T* values, int64_t count, int64_t capacity, T rest) {
  T* target = reinterpret_cast<T*>(area + at);
  if (count > 0) std::memcpy(target, values, static_cast<size_t>(count) * sizeof(T));
  std::fill(target + count, target + capacity, rest);
}

inline void put(char* area, int64_t at, const std::vector<int32_t>& values, int64_t capacity, int32_t rest) {
  put<int32_t>(area, at, values.data(), static_cast<int64_t>(values.size()), capacity, rest);
}

}  // namespace detail

}  // namespace prelude::gpu
