// One step's group of OneShot rows: each is matched, charged for the tokens that the cache lacks, and folded with
// those that share its cold prefix; then prefixes that are worth keeping get blocks.
//
//   rows in order ──admit()──▶ admitted │ deferred │ full (the group ends)
//   after the last ──keep()──▶ blocks to publish, promised where others may come to see them
//
// Blocks that host memory has behind a row's prefix come back once the step has room for what they leave of it.
//
// A pure function of the rows, pool and limits. Rows and leases are the caller's; the group borrows their tokens
// until the next begin().
#pragma once

#include <cstdint>
#include <vector>

#include "prelude/fold_finder.hpp"
#include "prelude/kv_pool.hpp"
#include "prelude/packer.hpp"

namespace prelude {

enum class CacheMode : int32_t { never, automatic, always };

// The values of a request that planning, packing and postprocessing read. Arrays are the owner's.
struct RequestRow {
  const int32_t* tokens = nullptr;     // all segments, end to end
  const int32_t* positions = nullptr;  // null with one segment, like the next two
  const int32_t* starts = nullptr;
  const int32_t* parents = nullptr;
  int64_t num_tokens = 0, segments = 1;
  int64_t trunk = 0;        // tokens of the first segment
  int64_t unread = 0;       // of these are only attended to; -1 where all but the last known one are (Decode)
  int64_t read = -1;        // the first token whose hidden state is read
  int64_t logits_rows = 0;  // rows that meet the vocabulary
  uint64_t salt = 0;
  CacheMode cache = CacheMode::automatic;
};

struct GroupLimits {
  int64_t tokens, rows, logits_bytes;           // the rest of the step
  int64_t logits_row_bytes, logits_chunk_rows;  // a row that meets the vocabulary; how many do at a time
  int64_t group_tokens;                         // the most tokens of the rows after the first one
  int64_t allowance;                            // beside running rows the group ends past so many; -1: no such limit
  int64_t defer_tokens, defer_steps;
  bool fold, retry, seen;  // seen: other requests may need at once the blocks that a row computes
};

// Whether a leader is filling the next blocks of a prompt of `n` tokens, and it is worth a step to wait for it, for a
// row that waited `deferred` steps so far. Rows of the same step that may share read it at once instead.
bool must_wait(KvPool& pool, const GroupLimits& limits, Lease& lease, const int32_t* tokens, int64_t n, uint64_t salt,
               int64_t deferred);

class OneShotGroup {
 public:
  enum class Verdict : int32_t { admitted, deferred, full };

  explicit OneShotGroup(KvPool& pool) : pool_(pool), folds_(pool.block_size()) {}

  void begin(const GroupLimits& limits) {
    left_ = limits;
    before_ = limits.tokens;
    withheld_ = count_ = 0;
    folds_.clear();
  }
  // The group is complete: the step's rest after it, and the folds.
  void end() {
    left_.tokens += withheld_, withheld_ = 0;
    folds_.finish();
  }
  const GroupLimits& left() const { return left_; }
  const FoldFinder& folds() const { return folds_; }

  bool done() const { return count_ > 0 && left_.allowance >= 0 && before_ - left_.tokens >= left_.allowance; }

  // Deferred and full rows hold nothing, nor does one for which memory failed: begin() has to be called next.
  // `skip`: the tokens that an admitted row has from the cache. `publish`: blocks that it keeps, where that is
  // decided at once.
  Verdict admit(const RequestRow& r, int64_t deferred, Lease& lease, int64_t* skip, int64_t* publish, Result* wrong);

  // Blocks for the row's tokens up to `end`, where they are worth keeping and the pool has room; promised at once
  // where that may be `seen`. False: there is no room without evicting blocks that were hit before, which stay unless
  // `evict_promoted`.
  bool keep(const RequestRow& r, Lease& lease, int64_t skip, int64_t end, bool evict_promoted, bool seen,
            int64_t* publish, Result* wrong);

 private:
  int64_t logits_bytes(const RequestRow& r) const {
    return std::min(r.logits_rows, left_.logits_chunk_rows) * left_.logits_row_bytes;
  }
  // Whether the step has room for the row, of which it computes so many tokens.
  bool holds(const RequestRow& r, int64_t tokens) const {
    return tokens <= left_.tokens && left_.rows >= 1 && logits_bytes(r) <= left_.logits_bytes;
  }
  Verdict admit_attached(const RequestRow& r, int64_t deferred, Lease& lease, int64_t* skip, int64_t* publish,
                         Result* wrong);
  KvPool& pool_;
  FoldFinder folds_;
  GroupLimits left_{};
  int64_t before_ = 0, withheld_ = 0, count_ = 0;
};

// A step's OneShot rows on their way through the packer. Of each of them: its row there, and its first token in it;
// tokens before that one are in row `roots`, whose first token is `heads` (-1: it is in no fold, or they are cached).
// Of each row there where it begins: all first tokens, then all first segments.
struct PackedRows {
  std::vector<PromptRow> rows;
  std::vector<int64_t> at, begins, roots, heads;
  std::vector<int32_t> places;

  // The number to add to token `token` of OneShot row `i` to get the batch's.
  int64_t shift(size_t i, int64_t token) const {
    const auto place = [this](int64_t row) { return int64_t{places[static_cast<size_t>(row)]}; };
    return roots[i] >= 0 && token < begins[i] ? place(roots[i]) - heads[i] : place(at[i]) - begins[i];
  }
};

// A row for the packer: the request's tokens from `begin` on. `parent` is the row of the folded segment before them,
// -1 with none; `end` >= 0 cuts a folded segment out of its leader's trunk. With a lease the row attaches the cached
// prefix, and writes the first `publish` blocks' tokens.
PromptRow prompt_row(const RequestRow& r, int64_t begin, int64_t end, int64_t parent, const Lease* lease,
                     int64_t skip, int64_t publish, int32_t block_size);

}  // namespace prelude
