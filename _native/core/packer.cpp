// Bodies of packer.hpp, which has the drawing and the contracts.
#include "prelude/packer.hpp"

#include <algorithm>
#include <cstring>

namespace prelude {

static const char* wrong_tree(const PromptRow& r) {
  if (r.segments < 1 || r.starts[0] != 0) return "starts: must begin with 0 and have a segment";
  for (int64_t s = 0; s < r.segments; ++s) {
    if (r.starts[s + 1] < r.starts[s]) return "starts: falls";
    if (s > 0 && (r.parents[s] < -1 || r.parents[s] >= s)) return "parents: not an earlier segment";
  }
  if (r.starts[r.segments] > r.num_tokens) return "starts: past the tokens";
  return nullptr;
}

static const char* wrong_row(const PromptRow& r, int64_t index, int64_t block_size) {
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

void fill_slots(const int32_t* blocks, int64_t from, int64_t count, int32_t block_size, int32_t* out) {
  int64_t block = from / block_size;
  int32_t offset = static_cast<int32_t>(from % block_size);
  while (count > 0) {
    const int32_t first = blocks[block++] * block_size + offset;
    const auto n = static_cast<int32_t>(std::min<int64_t>(block_size - offset, count));
    for (int32_t k = 0; k < n; ++k) out[k] = first + k;
    out += n, count -= n, offset = 0;
  }
}

PromptSizes measure(const PromptRow* rows, int64_t count, int64_t block_size) {
  PromptSizes sizes;
  for (int64_t i = 0; i < count; ++i) {
    const PromptRow& r = rows[i];
    if (const char* wrong = wrong_row(r, i, block_size)) {
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

void fill(const DecodeRow* rows, int64_t count, int32_t block_size, const DecodeArrays& out) {
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

void fill(const PromptRow* rows, int64_t count, int32_t block_size, const PromptArrays& out) {
  int32_t at = 0, segment = 0, context = 0;
  for (int64_t i = 0; i < count; ++i) {
    const PromptRow& r = rows[i];
    const int64_t end = r.starts != nullptr ? r.starts[r.segments] : r.end;
    const auto n = static_cast<int32_t>(end - r.begin);
    const auto begin = static_cast<int32_t>(r.begin);
    out.row_offsets[i] = at, out.row_segments[i] = segment;
    std::copy_n(r.tokens + begin, n, out.token_ids + at);
    if (r.positions != nullptr) {
      std::copy_n(r.positions + begin, n, out.positions + at);
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

}  // namespace prelude
