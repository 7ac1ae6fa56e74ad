// The queries and keys of one step as arrays, and the units of work that they are cut into.
//
//   item      some queries of a step in a row, and their keys: runs that lie in a row in the step or in the pool,
//             in the order of the sequence. Query i sees the first visible[i] keys of its item, or, where the plan
//             has windows, those of them from hidden[i] on. places[i] is the query's own place among the keys; only
//             a relative term needs it.
//   section   queries that one call of `run` computes, so that the others need not exist at that time.
//   unit      queries of one item and one section on one KV head. Those of a head come one after the other, so that
//             a thread packs keys once that several of them see, and largest first, so that threads end together.
//
// A prompt is an item with one run; a branch has a run for every ancestor and runs of the pool before them; a
// decode row is an item of one query whose runs are the blocks of its table, joined where they touch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "prelude/cpu/parallel.hpp"
#include "prelude/cpu/targets.hpp"

namespace prelude::cpu {

class AttentionPlan {
 public:
  // query_starts [items + 1], visible [query_starts[items]], run_starts [items + 1]; runs [run_starts[items]]; hidden
  // and places as visible, or empty. section_starts [sections + 1] goes from 0 to the number of queries, or is empty:
  // one section. Returns false, and stays empty, where a query sees no key or more keys than its item has.
  bool build(const Kernels& kernels, const AttentionShape& shape, std::vector<int32_t> query_starts,
             std::vector<int32_t> visible, std::vector<int32_t> run_starts, std::vector<KeyRun> runs,
             std::vector<int32_t> hidden, std::vector<int32_t> places = {},
             std::vector<int32_t> section_starts = {}) {
    if (!hidden.empty() && hidden.size() != visible.size()) return false;
    if (!places.empty() && places.size() != visible.size()) return false;
    const auto queries = static_cast<int32_t>(visible.size());
    if (section_starts.empty()) section_starts = {0, queries};
    const bool in_order = std::is_sorted(section_starts.begin(), section_starts.end());
    if (!in_order || section_starts.front() != 0 || section_starts.back() != queries) return false;
    kernels_ = &kernels;
    shape_ = shape;
    section_starts_ = std::move(section_starts);
    units_.clear();
    unit_starts_.assign(static_cast<size_t>(sections()) + 1, 0);
    step_keys_ = pool_keys_ = longest_ = 0;
    const auto items = static_cast<int32_t>(query_starts.size()) - 1;
    for (const KeyRun& run : runs) {
      if (run.from < 0 || run.length < 0) return false;
      int64_t& end = run.pool ? pool_keys_ : step_keys_;
      end = std::max(end, run.from + run.length);
    }
    for (int32_t item = 0; item < items; ++item) {
      int64_t keys = 0;
      for (int32_t r = run_starts[item]; r < run_starts[item + 1]; ++r) keys += runs[r].length;
      longest_ = std::max(longest_, keys);
      for (int32_t q = query_starts[item]; !places.empty() && q < query_starts[item + 1]; ++q)
        if (places[q] < 0 || places[q] >= keys) return units_.clear(), false;
      if (!cut(item, query_starts[item], query_starts[item + 1], keys, visible, hidden)) return units_.clear(), false;
    }
    std::stable_sort(units_.begin(), units_.end(), [this](const AttentionUnit& a, const AttentionUnit& b) {
      const int64_t of_a = section_of(a.first), of_b = section_of(b.first);
      if (of_a != of_b) return of_a < of_b;
      return a.kv_head != b.kv_head ? a.kv_head < b.kv_head : cost(a) > cost(b);
    });
    for (const AttentionUnit& unit : units_) ++unit_starts_[static_cast<size_t>(section_of(unit.first)) + 1];
    for (size_t s = 1; s < unit_starts_.size(); ++s) unit_starts_[s] += unit_starts_[s - 1];
    for (const AttentionUnit& unit : units_)
      room_floats_ = std::max(room_floats_, kernels.unit_floats(unit.keys - unit.from, shape));
    visible_ = std::move(visible);
    hidden_ = std::move(hidden);
    places_ = std::move(places);
    run_starts_ = std::move(run_starts);
    runs_ = std::move(runs);
    return true;
  }

  int64_t queries() const { return static_cast<int64_t>(visible_.size()); }
  int64_t sections() const { return static_cast<int64_t>(section_starts_.size()) - 1; }
  int64_t queries_of(int64_t section) const {
    return int64_t{section_starts_[static_cast<size_t>(section) + 1]} - section_starts_[static_cast<size_t>(section)];
  }
  int64_t step_keys() const { return step_keys_; }  // tokens of the step and slots of the pool
  int64_t pool_keys() const { return pool_keys_; }  // that a layer's tensors must have
  int64_t longest() const { return longest_; }      // keys of the longest item
  bool has_places() const { return !places_.empty() || visible_.empty(); }
  int64_t pairs() const {  // (query, key) pairs of all heads
    int64_t all = 0;
    for (const AttentionUnit& unit : units_) all += cost(unit);
    return all * (shape_.heads / shape_.kv_heads);
  }

  // One layer, or of it the queries of one section, which are then the rows of q and out. The room is taken at the
  // first call and kept until the plan goes. False: no memory, nothing done.
  bool run(AttentionTensors tensors, int threads, int64_t section = -1) {
    tensors.places = places_.data();
    size_t first = 0, last = units_.size();
    if (section >= 0) {
      tensors.first_query = section_starts_[static_cast<size_t>(section)];
      first = unit_starts_[static_cast<size_t>(section)], last = unit_starts_[static_cast<size_t>(section) + 1];
    }
    threads = std::max(1, std::min<int>(threads, static_cast<int>(last - first)));
    const int64_t apart = (room_floats_ + 31) / 32 * 32;
    if (threads > room_threads_) {
      room_.reset(new (std::nothrow) float[static_cast<size_t>(apart * threads + 32)]);
      room_threads_ = room_ ? threads : 0;
    }
    if (!room_ && apart > 0) return false;
    float* room = room_.get() + 16 - (reinterpret_cast<uintptr_t>(room_.get()) / 4) % 16;
    const AttentionUnit* before[kMostThreads] = {};  // of each thread
    run_pieces(threads, static_cast<int64_t>(last - first), [&](int64_t i, int thread) {
      const AttentionUnit& planned = units_[first + static_cast<size_t>(i)];
      const AttentionUnit* other = std::exchange(before[thread], &planned);
      AttentionUnit unit = planned;
      if (other != nullptr) unit.packed = same_keys(*other, unit);
      kernels_->attend(shape_, tensors, runs_.data() + run_starts_[unit.item], visible_.data(),
                       hidden_.empty() ? nullptr : hidden_.data(), unit, room + apart * thread);
    });
    return true;
  }

 private:
  // Rows of a unit: enough of them that packing the keys, which each unit does, is a few percent of its work.
  static constexpr int32_t kUnitRows = 192;

  static int64_t cost(const AttentionUnit& unit) {
    return static_cast<int64_t>(unit.last - unit.first) * (unit.keys - unit.from);
  }

  // Keys that both units begin with, whole panels of them.
  int32_t same_keys(const AttentionUnit& a, const AttentionUnit& b) const {
    if (a.kv_head != b.kv_head || a.from != b.from) return 0;
    const KeyRun *of_a = runs_.data() + run_starts_[a.item], *of_b = runs_.data() + run_starts_[b.item];
    const int64_t least = std::min(a.keys, b.keys);
    int64_t same = 0;
    for (; same < least && of_a->from == of_b->from && of_a->pool == of_b->pool; ++of_a, ++of_b) {
      same += std::min(of_a->length, of_b->length);
      if (of_a->length != of_b->length) break;
    }
    same = std::min(same, least) - a.from;
    return same < 0 ? 0 : static_cast<int32_t>(same / kKeyAlignment * kKeyAlignment);
  }

  int64_t section_of(int32_t query) const {
    if (section_starts_.size() == 2) return 0;
    return std::upper_bound(section_starts_.begin(), section_starts_.end(), query) - section_starts_.begin() - 1;
  }

  bool cut(int32_t item, int32_t first, int32_t last, int64_t keys, const std::vector<int32_t>& visible,
           const std::vector<int32_t>& hidden) {
    const int32_t step = std::max<int32_t>(1, kUnitRows * shape_.kv_heads / shape_.heads);
    for (int32_t from = first, to; from < last; from = to) {
      to = std::min({last, from + step, section_starts_[static_cast<size_t>(section_of(from)) + 1]});
      int32_t most = 0, least = hidden.empty() ? 0 : hidden[from];
      for (int32_t q = from; q < to; ++q) {
        if (visible[q] < 1 || visible[q] > keys) return false;
        most = std::max(most, visible[q]);
        if (hidden.empty()) continue;
        if (hidden[q] < 0 || hidden[q] >= visible[q]) return false;
        least = std::min(least, hidden[q]);
      }
      least -= least % kKeyAlignment;
      for (int32_t head = 0; head < shape_.kv_heads; ++head) units_.push_back({item, head, from, to, most, least});
    }
    return true;
  }

  const Kernels* kernels_ = nullptr;
  AttentionShape shape_{};
  std::vector<int32_t> visible_;
  std::vector<int32_t> hidden_;
  std::vector<int32_t> places_;
  std::vector<int32_t> run_starts_;
  std::vector<KeyRun> runs_;
  std::vector<int32_t> section_starts_{0, 0};
  std::vector<AttentionUnit> units_;
  std::vector<size_t> unit_starts_{0, 0};  // of each section
  int64_t step_keys_ = 0;
  int64_t pool_keys_ = 0;
  int64_t longest_ = 0;
  int64_t room_floats_ = 0;
  std::unique_ptr<float[]> room_;
  int room_threads_ = 0;
};

}  // namespace prelude::cpu
