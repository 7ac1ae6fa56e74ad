// Strings and their ids as a double array: the child of a node for byte b lies at base ^ b, if the label there is b.
//
//   units_   block 0 (256 units) is the root's own and empty; a leaf has base 0, so nothing follows it
//
//   invariants  immutable after build()
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "memory/table_array.hpp"

namespace fasttoken {

class ByteTrie {
 public:
  static constexpr uint32_t none = (1u << 23) - 1;  // past all ids
  // The units and the lists beside them take at most 100 bytes a node. backends/bounds.py has the same number.
  static constexpr size_t most_nodes = size_t{1} << 23;
  enum class Built : uint8_t { yes, too_sparse, too_many_nodes };

  struct Entry {
    std::string_view text;  // not empty
    uint32_t id;            // below `none`
  };
  // Of equal texts the first counts. too_sparse: it would take too many units a node.
  Built build(std::vector<Entry> entries) { return Builder(*this, entries).build(); }

  // The way of a text from the root on.
  struct Walk;
  Walk walk() const;
  uint32_t deepest() const { return deepest_; }  // bytes of the longest text

  void tables(auto& io) { io(units_, deepest_); }

 private:
  // 8 bytes, so that much of the trie stays near: label and id of the text that ends here.
  struct Unit {
    uint32_t base;
    uint32_t packed;  // the id, and below it nine bits of label
    uint32_t label() const { return packed & 511; }
    uint32_t id() const { return packed >> 9; }
  };
  static constexpr uint32_t no_label = 256;
  static constexpr Unit empty{0, none << 9 | no_label};

  // Places the nodes, each with all its children. Free units are in a list, in the order of the units.
  class Builder {
   public:
    Builder(ByteTrie& trie, std::vector<Entry>& entries) : trie_(trie), entries_(entries) {}

    Built build() {
      std::stable_sort(entries_.begin(), entries_.end(),
                       [](const Entry& a, const Entry& b) { return a.text < b.text; });
      units_.assign(block, empty);
      used_.assign(block, true);
      std::vector<Range> open{{0, 0, entries_.size(), 0}};
      while (!open.empty()) {
        const Range range = open.back();
        open.pop_back();
        place(range, open);
        if (nodes_ > most_nodes) return Built::too_many_nodes;
        if (units_.size() > most_units_a_node * nodes_ + 64 * block) return Built::too_sparse;
      }
      trie_.units_.swap(units_);
      return Built::yes;
    }

   private:
    static constexpr uint32_t block = 256, open_blocks = 64;
    // How many units are tried for a node with several children, and how many units there may be for each node.
    static constexpr int tries = 128;
    static constexpr size_t most_units_a_node = 4;

    struct Range {  // the texts that pass through a unit, of which so many bytes are read
      uint32_t unit;
      size_t from, to, depth;
    };

    void place(const Range& range, std::vector<Range>& open) {
      trie_.deepest_ = std::max(trie_.deepest_, static_cast<uint32_t>(range.depth));
      size_t from = range.from;
      if (from < range.to && entries_[from].text.size() == range.depth)
        units_[range.unit].packed = entries_[from].id << 9 | units_[range.unit].label();
      while (from < range.to && entries_[from].text.size() == range.depth) ++from;
      if (from == range.to) return;
      children_.clear();
      for (size_t i = from; i < range.to; ++i) {
        const unsigned char byte = static_cast<unsigned char>(entries_[i].text[range.depth]);
        if (children_.empty() || children_.back().byte != byte) children_.push_back({byte, i});
      }
      nodes_ += children_.size();
      if (nodes_ > most_nodes) return;
      const uint32_t base = base_of_children();
      units_[range.unit].base = base;
      used_[base] = true;
      for (size_t i = 0; i < children_.size(); ++i) {
        const uint32_t unit = base ^ children_[i].byte;
        take(unit);
        units_[unit] = {0, none << 9 | children_[i].byte};
        open.push_back(
            {unit, children_[i].from, i + 1 < children_.size() ? children_[i + 1].from : range.to, range.depth + 1});
      }
    }

    // A base that no node has yet, where the units of all children are free. A lone child takes the first free unit;
    // several are looked for from the last one on.
    uint32_t base_of_children() {
      const bool lone = children_.size() == 1;
      const uint32_t first = children_[0].byte;
      uint32_t unit = lone ? head_ : tail_;
      for (int i = 0; i < tries && unit != no_unit; ++i, unit = lone ? next_[unit - block] : last_[unit - block]) {
        const uint32_t base = unit ^ first;
        if (used_[base]) continue;
        if (std::all_of(children_.begin(), children_.end(),
                        [&](const Child& child) { return !taken_[(base ^ child.byte) - block]; }))
          return base;
      }
      const uint32_t begin = static_cast<uint32_t>(units_.size());
      add_block();
      return begin;
    }

    void add_block() {
      const uint32_t begin = static_cast<uint32_t>(units_.size());
      units_.resize(begin + block, empty);
      used_.resize(begin + block, false);
      taken_.resize(begin, false);
      next_.resize(begin, no_unit);
      last_.resize(begin, no_unit);
      for (uint32_t unit = begin; unit < begin + block; ++unit) {
        last_[unit - block] = tail_;
        (tail_ == no_unit ? head_ : next_[tail_ - block]) = unit;
        tail_ = unit;
      }
      // Units of old blocks stay as they are.
      if (begin < open_blocks * block) return;
      const uint32_t closed = begin - open_blocks * block + block;
      while (head_ < closed) take(head_);
    }
    void take(uint32_t unit) {
      const uint32_t i = unit - block, before = last_[i], after = next_[i];
      taken_[i] = true;
      (before == no_unit ? head_ : next_[before - block]) = after;
      (after == no_unit ? tail_ : last_[after - block]) = before;
    }

    struct Child {
      unsigned char byte;
      size_t from;
    };
    static constexpr uint32_t no_unit = UINT32_MAX;
    ByteTrie& trie_;
    std::vector<Entry>& entries_;
    std::vector<Unit> units_;
    std::vector<bool> used_, taken_;     // bases; units, without the first block
    std::vector<uint32_t> next_, last_;  // of the free units, without the first block
    std::vector<Child> children_;
    uint32_t head_ = no_unit, tail_ = no_unit;
    size_t nodes_ = 0;
  };

  TableArray<Unit> units_;
  uint32_t deepest_ = 0;
};

struct ByteTrie::Walk {
  const Unit* units;
  uint32_t base, id;

  // False: no text goes on with this byte. `id`: of the text that is read so far, or `none`.
  bool step(char byte) {
    const uint32_t label = static_cast<unsigned char>(byte);
    const Unit unit = units[base ^ label];
    if (unit.label() != label) return false;
    base = unit.base;
    id = unit.id();
    return true;
  }
};
inline ByteTrie::Walk ByteTrie::walk() const { return {units_.data(), units_[0].base, none}; }

}  // namespace fasttoken
