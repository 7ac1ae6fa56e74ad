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

PromptSizes measure(const PromptRow* rows, int64_t count, int64_t block_size);

// Slots of positions [from, from + count) under a block table; one multiplication a block.
void fill_slots(const int32_t* blocks, int64_t from, int64_t count, int32_t block_size, int32_t* out);

// `rows` as measured: sizes fit.
void fill(const PromptRow* rows, int64_t count, int32_t block_size, const PromptArrays& out);

// --- rows that decode -----------------------------------------------------------------------------------------

// The last of `known` tokens is fed; its KV goes to the block table's slot for it. The table is two parts, the
// locked path of the trie and the row's own blocks, so that no caller has to join them first.
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

void fill(const DecodeRow* rows, int64_t count, int32_t block_size, const DecodeArrays& out);

}  // namespace prelude
