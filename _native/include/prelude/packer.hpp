// The packer: rows of a step, laid end to end in flat arrays, in one pass that copies and counts.
//
//   row 0   tokens [a b c d e f]  begin 2 ──────▶ segment 0   c d e f                    parent -1
//   row 1   a tree: starts [0 3 5 6]              segment 1   trunk (its first `begin` are cached)
//             parents  [-1 0 0]            ─────▶ segment 2   branch   parent 1
//                                                 segment 3   branch   parent 1
//   row 2   continues row 0 (a fold)       ─────▶ segment 4            parent 0
//
//   token_ids   │ row 0 │ row 1 ......... │ row 2 │     starts[s] .. starts[s + 1] are segment s
//   positions   │ as the row says, or begin, begin + 1, ...
//   write_slots │ block * block_size + offset where the row keeps KV, -1 elsewhere
//   context     │ CSR of the pool blocks before a row's first segment, and how many tokens of them count
//
// Two passes: measure() checks every row and adds up sizes, so that fill() needs no checks and writes each
// output once. The arrays of rows are borrowed for the two calls; outputs are the caller's.
#pragma once

#include <cstdint>
#include <cstring>

namespace prelude {

struct PromptRow {
  const int32_t* tokens;
  const int32_t* positions;  // one a token; null: a token's index
  int64_t num_tokens;
  const int32_t* starts;   // of a tree: segments + 1 offsets, the first 0; null: one segment
  const int32_t* parents;  // of a tree: one a segment, an earlier one of it or -1 (only the trunk: `parent` then)
  int64_t segments;        // 1 without a tree
  int64_t begin, end;      // tokens of the trunk that are computed; `end` is the trunk's own in a tree
  int64_t parent;          // the earlier row whose first segment this one continues, or -1
  const int32_t* context;  // pool blocks of the tokens before
  int64_t context_blocks, context_len;
  const int32_t* slots;  // pool blocks that get the KV of the trunk's first `slot_count` computed tokens,
  int64_t slot_blocks;   // which stand at slot_start, slot_start + 1, ... of these blocks
  int64_t slot_start, slot_count;
};

struct PromptSizes {
  int64_t tokens = 0, segments = 0, context = 0;
  bool writes = false;
  int64_t bad_row = -1;  // the first row that cannot be packed, and why
  const char* reason = nullptr;
};

struct PromptArrays {
  int32_t *token_ids, *positions, *starts, *parents, *context_lens, *context_indptr, *context_blocks;
  int32_t* write_slots;  // null when nothing is written
  int32_t *row_offsets, *row_segments;
};

namespace detail {

inline const char* wrong_tree(const PromptRow& r) {
  if (r.segments < 1 || r.starts[0] != 0) return "starts: must begin with 0 and have a segment";
  for (int64_t s = 0; s < r.segments; ++s) {
    if (r.starts[s + 1] < r.starts[s]) return "starts: falls";
    if (s > 0 && (r.parents[s] < -1 || r.parents[s] >= s)) return "parents: not an earlier segment";
  }
  if (r.starts[r.segments] > r.num_tokens) return "starts: past the tokens";
  return nullptr;
}

inline const char* wrong_row(const PromptRow& r, int64_t index, int64_t block_size) {
  if (r.starts != nullptr) {
    if (const char* wrong = wrong_tree(r)) return wrong;
  }
  const int64_t end = r.starts != nullptr ? r.starts[1] : r.end;
  if (r.begin < 0 || r.begin > end || end > r.num_tokens) return "begin and end: not a range of the tokens";
  if (r.parent < -1 || r.parent >= index) return "parent: not an earlier row";
  if (r.context_len < 0 || r.context_len > r.context_blocks * block_size) {
    return "context_len: more tokens than the context's blocks hold";
  }
  if (r.slot_count < 0 || r.slot_count > end - r.begin) return "slot_count: more than the tokens computed";
  if (r.slot_count > 0 && (r.slot_start < 0 || r.slot_start + r.slot_count > r.slot_blocks * block_size)) {
    return "slot_blocks: too few for the tokens to write";
  }
  return nullptr;
}

}  // namespace detail

inline PromptSizes measure(const PromptRow* rows, int64_t count, int64_t block_size) {
  PromptSizes sizes;
  for (int64_t i = 0; i < count; ++i) {
    const PromptRow& r = rows[i];
    if (const char* wrong = detail::wrong_row(r, i, block_size)) {
      sizes.bad_row = i, sizes.reason = wrong;
      return sizes;
    }
    sizes.tokens += (r.starts != nullptr ? r.starts[r.segments] : r.end) - r.begin;
    sizes.segments += r.segments;
    sizes.context += r.context_blocks;
    sizes.writes |= r.slot_count > 0;
    if (sizes.tokens > INT32_MAX || sizes.context > INT32_MAX) {
      sizes.bad_row = i, sizes.reason = "more tokens or blocks in one step than int32 can count";
      return sizes;
    }
  }
  return sizes;
}

// Slots of positions [from, from + count) under a block table; one multiplication a block.
inline void fill_slots(const int32_t* blocks, int64_t from, int64_t count, int32_t block_size, int32_t* out) {
  int64_t block = from / block_size;
  int32_t offset = static_cast<int32_t>(from % block_size);
  while (count > 0) {
    const int32_t base = blocks[block++] * block_size;
    for (; offset < block_size && count > 0; ++offset, --count) *out++ = base + offset;
    offset = 0;
  }
}

// `rows` as measured: sizes fit.
inline void fill(const PromptRow* rows, int64_t count, int32_t block_size, const PromptArrays& out) {
  int32_t at = 0, segment = 0, context = 0;
  for (int64_t i = 0; i < count; ++i) {
    const PromptRow& r = rows[i];
    const int64_t end = r.starts != nullptr ? r.starts[r.segments] : r.end;
    const auto n = static_cast<int32_t>(end - r.begin);
    const auto begin = static_cast<int32_t>(r.begin);
    out.row_offsets[i] = at, out.row_segments[i] = segment;
    std::memcpy(out.token_ids + at, r.tokens + begin, sizeof(int32_t) * static_cast<size_t>(n));
    if (r.positions != nullptr) {
      std::memcpy(out.positions + at, r.positions + begin, sizeof(int32_t) * static_cast<size_t>(n));
    } else {
      for (int32_t k = 0; k < n; ++k) out.positions[at + k] = begin + k;
    }
    if (out.write_slots != nullptr) {
      const auto kept = static_cast<int32_t>(r.slot_count);
      fill_slots(r.slots, r.slot_start, kept, block_size, out.write_slots + at);
      for (int32_t k = kept; k < n; ++k) out.write_slots[at + k] = -1;
    }
    const int32_t first = segment;
    for (int64_t s = 0; s < r.segments; ++s, ++segment) {
      out.starts[segment] = at + (s == 0 ? 0 : r.starts[s] - begin);
      out.context_indptr[segment] = context;
      if (s == 0) {
        out.parents[segment] = r.parent < 0 ? -1 : out.row_segments[r.parent];
        out.context_lens[segment] = static_cast<int32_t>(r.context_len);
        if (r.context_blocks > 0) {
          std::memcpy(out.context_blocks + context, r.context,
                      sizeof(int32_t) * static_cast<size_t>(r.context_blocks));
        }
        context += static_cast<int32_t>(r.context_blocks);
      } else {
        out.parents[segment] = r.parents[s] < 0 ? -1 : first + r.parents[s];
        out.context_lens[segment] = 0;
      }
    }
    at += n;
  }
  out.starts[segment] = at;
  out.context_indptr[segment] = context;
}

// --- rows that decode -----------------------------------------------------------------------------------------

// The last of `known` tokens is fed; its KV goes to the block table's slot for it. The table is two parts, the
// locked path of the trie and the row's own blocks, so that nobody has to join them first.
struct DecodeRow {
  const int32_t* tokens;
  int64_t num_tokens, known;
  const int32_t *shared, *own;
  int64_t shared_blocks, own_blocks;
};

struct DecodeArrays {
  int32_t *token_ids, *positions, *write_slots, *context_lens, *block_indptr, *block_ids;
};

inline const char* wrong_row(const DecodeRow& r, int64_t block_size) {
  if (r.known < 1 || r.known > r.num_tokens) return "num_known: not within the tokens";
  if (r.known > (r.shared_blocks + r.own_blocks) * block_size) return "the block table does not cover the token";
  return nullptr;
}

inline void fill(const DecodeRow* rows, int64_t count, int32_t block_size, const DecodeArrays& out) {
  int32_t at = 0;
  for (int64_t i = 0; i < count; ++i) {
    const DecodeRow& r = rows[i];
    const auto position = static_cast<int32_t>(r.known - 1);
    const auto shared = static_cast<int32_t>(r.shared_blocks), own = static_cast<int32_t>(r.own_blocks);
    out.block_indptr[i] = at;
    int32_t* table = out.block_ids + at;
    if (shared > 0) std::memcpy(table, r.shared, sizeof(int32_t) * static_cast<size_t>(shared));
    if (own > 0) std::memcpy(table + shared, r.own, sizeof(int32_t) * static_cast<size_t>(own));
    at += shared + own;
    out.token_ids[i] = r.tokens[position];
    out.positions[i] = out.context_lens[i] = position;
    out.write_slots[i] = table[position / block_size] * block_size + position % block_size;
  }
  out.block_indptr[count] = at;
}

}  // namespace prelude
