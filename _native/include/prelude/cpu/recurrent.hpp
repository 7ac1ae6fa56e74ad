// Recurrent layers over the forest of a step: where each token's earlier inputs are, and the work cut over threads.
//
//   step rows      [ segment 0 ........ ][ 1 .... ][ 2 . ][ 3 (decode row) ]
//   states         entry ──load──▶ root ─▶ state at its end ─┬─▶ child 1 ─▶ ...
//                                                            └─▶ child 2 ──store──▶ entry
//
// A tree's segments run one after another, parents first; trees, heads and blocks of columns run in parallel. A state
// that no entry takes lies in memory of the call, as long as children of its segment remain.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "prelude/cpu/parallel.hpp"
#include "prelude/cpu/row_work.hpp"
#include "prelude/cpu/targets.hpp"

namespace prelude::cpu {

// The error of a step's segments; `segment` is the first bad one.
struct SequenceCheck {
  const char* wrong = nullptr;
  int64_t segment = -1;
};

class SequencePlan {
 public:
  // `starts` has one entry more than the others. `kernel`: inputs that a convolution reads for a token. After a
  // refusal the plan is empty. May throw std::bad_alloc.
  SequenceCheck build(std::vector<int32_t> starts, std::vector<int32_t> parents, std::vector<int32_t> load,
                      std::vector<int32_t> store, int64_t entries, int64_t kernel) {
    starts_ = std::move(starts), parents_ = std::move(parents);
    load_ = std::move(load), store_ = std::move(store);
    window_ = kernel - 1;
    const SequenceCheck seen = check(entries, kernel);
    if (seen.wrong == nullptr) {
      order();
      find_history();
    } else {
      starts_.assign(1, 0), parents_.clear(), load_.clear(), store_.clear(), trees_.assign(1, 0);
    }
    return seen;
  }

  int64_t rows() const { return starts_.back(); }
  int64_t kernel() const { return window_ + 1; }
  int64_t trees() const { return static_cast<int64_t>(trees_.size()) - 1; }
  int64_t most_kept() const { return most_kept_; }
  const int32_t* kept() const { return kept_.data(); }
  const int32_t* members(int64_t tree) const { return members_.data() + trees_[static_cast<size_t>(tree)]; }
  int64_t num_members(int64_t tree) const {
    return trees_[static_cast<size_t>(tree) + 1] - trees_[static_cast<size_t>(tree)];
  }
  Segments segments() const {
    return {starts_.data(), parents_.data(), load_.data(),
            store_.data(),  history_.data(), static_cast<int64_t>(parents_.size()),
            window_};
  }

 private:
  SequenceCheck check(int64_t entries, int64_t kernel) {
    const size_t count = parents_.size();
    if (starts_.size() != count + 1 || load_.size() != count || store_.size() != count)
      return {"arrays of different lengths", 0};
    if (starts_[0] != 0) return {"rows do not begin at 0", 0};
    if (kernel < 1 || kernel > kMostTaps) return {"a convolution of no length, or too long a one", 0};
    if (entries < 0 || entries * kernel >= INT32_MAX) return {"more entries than can be numbered", 0};
    roots_.resize(count);
    std::vector<int32_t> owner(static_cast<size_t>(entries), -1);  // the root of the segment that stores into it
    for (size_t s = 0; s < count; ++s) {
      const auto at = static_cast<int64_t>(s);
      if (starts_[s + 1] < starts_[s]) return {"rows that end before they begin", at};
      if (parents_[s] < -1 || parents_[s] >= at) return {"a parent that does not come before it", at};
      if (load_[s] < -1 || load_[s] >= entries || store_[s] < -1 || store_[s] >= entries)
        return {"no such entry", at};
      if (parents_[s] >= 0 && load_[s] >= 0) return {"a parent and a state of its own", at};
      roots_[s] = parents_[s] < 0 ? static_cast<int32_t>(s) : roots_[static_cast<size_t>(parents_[s])];
      if (store_[s] < 0) continue;
      if (owner[static_cast<size_t>(store_[s])] >= 0) return {"an entry that takes two states", at};
      owner[static_cast<size_t>(store_[s])] = roots_[s];
    }
    for (size_t s = 0; s < count; ++s)
      if (load_[s] >= 0 && owner[static_cast<size_t>(load_[s])] >= 0 &&
          owner[static_cast<size_t>(load_[s])] != static_cast<int32_t>(s))
        return {"a state that another sequence overwrites", static_cast<int64_t>(s)};
    return {};
  }

  void order() {
    const size_t count = parents_.size();
    std::vector<int32_t> children(count, 0), place(count, 0);
    trees_.assign(1, 0);
    for (size_t s = 0; s < count; ++s) {
      if (parents_[s] < 0) {
        place[s] = static_cast<int32_t>(trees_.size()) - 1;
        trees_.push_back(0);
      } else {
        ++children[static_cast<size_t>(parents_[s])];
      }
      ++trees_[static_cast<size_t>(place[static_cast<size_t>(roots_[s])]) + 1];
    }
    for (size_t t = 1; t < trees_.size(); ++t) trees_[t] += trees_[t - 1];
    std::vector<int32_t> next(trees_.begin(), trees_.end()), parts(trees_.size(), 1);
    members_.resize(count), kept_.assign(count, 0);
    most_kept_ = 1;
    for (size_t s = 0; s < count; ++s) {
      const auto tree = static_cast<size_t>(place[static_cast<size_t>(roots_[s])]);
      members_[static_cast<size_t>(next[tree]++)] = static_cast<int32_t>(s);
      if (children[s] > 0 && store_[s] < 0) kept_[s] = parts[tree]++;
      most_kept_ = std::max<int64_t>(most_kept_, parts[tree]);
    }
  }

  void find_history() {
    const auto count = static_cast<int64_t>(parents_.size());
    history_.assign(static_cast<size_t>(count * window_), kNoInput);
    for (int64_t s = 0; s < count; ++s) {
      int32_t* mine = history_.data() + s * window_;
      const auto at = static_cast<size_t>(s);
      const int64_t parent = parents_[at];
      for (int64_t j = 0; j < window_; ++j) {
        if (parent >= 0) {
          mine[j] = before_end(parent, j);
        } else if (load_[at] >= 0) {
          mine[j] = window_row(load_[at], window_, j);
        }
      }
    }
  }

 public:
  // The j-th of the last inputs at a segment's end, from the oldest one.
  int32_t before_end(int64_t segment, int64_t j) const {
    const int64_t first = starts_[static_cast<size_t>(segment)],
                  length = starts_[static_cast<size_t>(segment) + 1] - first;
    if (length + j < window_) return history_[static_cast<size_t>(segment * window_ + length + j)];
    return static_cast<int32_t>(first + length + j - window_);
  }

 private:
  std::vector<int32_t> starts_{0}, parents_, load_, store_, roots_, history_, members_, kept_, trees_{0};
  int64_t window_ = 0, most_kept_ = 1;
};

// body(first, last, room) over `rows` rows of about `work` values each; a thread has `floats` of room. False: no
// memory for it.
template <class Body>
bool over_step_rows(int64_t rows, int64_t work, int64_t floats, int threads, Body&& body) {
  threads = std::max(threads, 1);
  const int64_t least = std::max<int64_t>(1, kPieceValues / std::max<int64_t>(work, 1));
  const int64_t step = std::max(least, (rows + threads - 1) / threads);
  const int64_t pieces = (rows + step - 1) / step;
  threads = static_cast<int>(std::clamp<int64_t>(pieces, 1, threads));
  float* room = new (std::nothrow) float[static_cast<size_t>(threads * floats)];
  if (room == nullptr) return false;
  run_pieces(threads, pieces,
             [&](int64_t i, int thread) { body(i * step, std::min(rows, (i + 1) * step), room + thread * floats); });
  delete[] room;
  return true;
}

// The last inputs of every segment that has an entry, into its window there. Rows that move within one window move to
// lower places, the lowest first.
inline void keep_windows(const SequencePlan& plan, const ConvolveArgs& a) {
  const Segments s = plan.segments();
  const auto bytes = static_cast<size_t>(a.channels) * sizeof(float);
  for (int64_t segment = 0; segment < s.count; ++segment) {
    if (s.store[segment] < 0) continue;
    float* window = a.windows + s.store[segment] * a.state_stride;
    for (int64_t j = 0; j < s.window; ++j) {
      const int32_t entry = plan.before_end(segment, j);
      float* to = window + j * a.channels;
      if (entry == kNoInput) {
        std::memset(to, 0, bytes);
      } else if (entry < 0) {
        const int64_t place = -2 - int64_t{entry};
        std::memmove(to, a.windows + place / s.window * a.state_stride + place % s.window * a.channels, bytes);
      } else if (a.type == Type::f32) {
        std::memcpy(to, static_cast<const float*>(a.x) + entry * a.x_stride, bytes);
      } else {
        widen(static_cast<const uint16_t*>(a.x) + entry * a.x_stride, a.channels, to);
      }
    }
  }
}

// False: no memory for a thread's rows; then nothing is kept.
inline bool convolve(const Kernels& kernels, const SequencePlan& plan, const ConvolveArgs& a, int threads) {
  const Segments s = plan.segments();
  const bool done =
      over_step_rows(plan.rows(), a.channels * a.kernel, (a.kernel + 2) * a.channels, threads,
                     [&](int64_t first, int64_t last, float* room) { kernels.convolve(a, s, first, last, room); });
  if (done) keep_windows(plan, a);
  return done;
}

inline bool delta_inputs(const Kernels& kernels, const SequencePlan& plan, const DeltaInputArgs& a, int threads) {
  const Segments s = plan.segments();
  const int64_t room = (a.conv.kernel + 2) * a.conv.channels;
  const bool done = over_step_rows(
      plan.rows(), a.conv.channels * (a.conv.kernel + 2), room, threads,
      [&](int64_t first, int64_t last, float* floats) { kernels.delta_inputs(a, s, first, last, floats); });
  if (done) keep_windows(plan, a.conv);
  return done;
}

inline bool delta(const Kernels& kernels, const SequencePlan& plan, const DeltaArgs& a, int threads) {
  const Segments s = plan.segments();
  const int64_t blocks = state_blocks(a.shape), at_once = std::max(1, kernels.lanes / 4);
  const int64_t parts = (blocks + at_once - 1) / at_once, units = plan.trees() * a.shape.value_heads * parts;
  // A thread takes several units at a time where each of them is short.
  const int64_t work = units > 0 ? plan.rows() * a.shape.values() * a.shape.key_width / units : 0;
  const int64_t together = std::max<int64_t>(1, 4 * kPieceValues / std::max<int64_t>(work, 1));
  const int64_t pieces = (units + together - 1) / together;
  threads = static_cast<int>(std::clamp<int64_t>(pieces, 1, std::max(threads, 1)));
  const int64_t floats = plan.most_kept() * at_once * a.shape.key_width * kStateColumns;
  float* room = new (std::nothrow) float[static_cast<size_t>(threads * floats)];
  if (room == nullptr) return false;
  run_pieces(threads, pieces, [&](int64_t piece, int thread) {
    for (int64_t unit = piece * together; unit < std::min(units, (piece + 1) * together); ++unit) {
      const int64_t tree = unit / (a.shape.value_heads * parts), rest = unit % (a.shape.value_heads * parts);
      const int64_t block = rest % parts * at_once, count = std::min(at_once, blocks - block);
      kernels.delta(a, s, plan.members(tree), plan.num_members(tree), plan.kept(), rest / parts, block,
                    static_cast<int>(count), room + thread * floats);
    }
  });
  delete[] room;
  return true;
}

inline bool gate(const Kernels& kernels, const GateArgs& a, int64_t rows, int threads) {
  const int64_t values = a.heads * a.width;
  return over_step_rows(rows, values, 3 * values, threads,
                        [&](int64_t first, int64_t last, float* room) { kernels.gate(a, first, last, room); });
}

}  // namespace prelude::cpu
