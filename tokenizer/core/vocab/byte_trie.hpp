// Strings and their ids as a double array: the child of a node for byte b lies at base ^ b, if the label there is b.
//
//   units_   block 0 (256 units) is the root's own and empty; a leaf has base 0, so nothing follows it
//
//   invariants  immutable after build()
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "memory/scratch_vector.hpp"
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
  using Entries = ScratchVector<Entry>;
  // Of equal texts the first counts. too_sparse: it would take too many units a node.
  Built build(Entries entries) { return Builder(*this, entries).build(); }

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

  // Places the nodes, each with all its children, whose texts it sorts by their next byte.
  class Builder {
   public:
    Builder(ByteTrie& trie, Entries& entries) : trie_(trie), entries_(entries) {}

    Built build() {
      std::vector<Range> open{{0, 0, entries_.size(), 0}};
      while (!open.empty()) {
        const Range range = open.back();
        open.pop_back();
        place(range, open);
        if (nodes_ > most_nodes) return Built::too_many_nodes;
        if (units_.size() > most_units_a_node * nodes_ + 64 * block) return Built::too_sparse;
      }
      trie_.units_.append(units_.data(), units_.size());
      return Built::yes;
    }

   private:
    static constexpr uint32_t block = 256;
    // How many blocks are tried for a node with several children, and how many units there may be for each node.
    static constexpr size_t tries = 4, most_units_a_node = 4;

    struct Range {  // the texts that pass through a unit, of which so many bytes are read
      uint32_t unit;
      size_t from, to, depth;
    };
    using Bits = std::array<uint64_t, block / 64>;
    static constexpr Bits full{UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};
    struct Block {
      Bits free, unused;  // units that are no node's; bases that no node has
    };

    void place(const Range& range, std::vector<Range>& open) {
      trie_.deepest_ = std::max(trie_.deepest_, static_cast<uint32_t>(range.depth));
      const auto next_byte = [&](const Entry& entry) { return static_cast<unsigned char>(entry.text[range.depth]); };
      size_t end = range.from;  // of the texts that go on
      children_.clear();
      for (size_t i = range.from; i < range.to; ++i) {
        const Entry& entry = entries_[i];
        if (entry.text.size() > range.depth) {
          if (!counts_[next_byte(entry)]++) children_.push_back(next_byte(entry));
          entries_[end++] = entry;
        } else if (units_[range.unit].id() == none) {
          units_[range.unit].packed = entry.id << 9 | units_[range.unit].label();
        }
      }
      if (children_.empty()) return;
      nodes_ += children_.size();
      if (nodes_ > most_nodes) return;
      const uint32_t base = base_of_children();
      units_[range.unit].base = base;
      remove(blocks_[base / block].unused, base);
      size_t from = range.from;
      for (const unsigned char byte : children_) {
        const uint32_t unit = base ^ byte;
        remove(blocks_[unit / block].free, unit);
        units_[unit] = {0, none << 9 | byte};
        open.push_back({unit, from, from + counts_[byte], range.depth + 1});
        from += std::exchange(counts_[byte], from);
      }
      if (children_.size() > 1) {
        sorted_.assign(entries_.begin() + range.from, entries_.begin() + end);
        for (const Entry& entry : sorted_) entries_[counts_[next_byte(entry)]++] = entry;
      }
      for (const unsigned char byte : children_) counts_[byte] = 0;
    }

    // A base that no node has yet, where the units of all children are free. A lone child takes the first block with
    // room for it; for several the last blocks are tried. Of a block's units the first is taken, so that a walk stays
    // near.
    uint32_t base_of_children() {
      const bool lone = children_.size() == 1;
      const unsigned char first = children_[0];
      for (size_t i = 0; lone ? first_ < blocks_.size() : i < std::min(tries, blocks_.size()); ++i) {
        const size_t at = lone ? first_ : blocks_.size() - 1 - i;
        const Bits& free = blocks_[at].free;
        Bits units = free;  // for the first child
        bool any = keep_moved(units, blocks_[at].unused, first);
        for (size_t k = 1; any && k < children_.size(); ++k) any = keep_moved(units, free, first ^ children_[k]);
        for (size_t word = 0; any && word < units.size(); ++word) {
          const size_t bit = static_cast<size_t>(std::countr_zero(units[word]));
          if (bit < 64) return static_cast<uint32_t>(at * block + word * 64 + bit) ^ first;
        }
        if (lone) ++first_;
      }
      units_.resize(units_.size() + block, empty);
      blocks_.push_back({full, full});
      return static_cast<uint32_t>(units_.size()) - block;
    }

    // Keeps bit i of `bits` if bit i ^ byte of `others` is set. False: none is left.
    static bool keep_moved(Bits& bits, Bits others, uint32_t byte) {
      static constexpr uint64_t evens[] = {0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F,
                                           0x00FF00FF00FF00FF, 0x0000FFFF0000FFFF, 0x00000000FFFFFFFF};
      for (unsigned k = 0; k < 6; ++k)
        if (byte >> k & 1)
          for (uint64_t& word : others) word = (word & evens[k]) << (1u << k) | (word >> (1u << k) & evens[k]);
      uint64_t any = 0;
      for (size_t word = 0; word < bits.size(); ++word) any |= bits[word] &= others[word ^ byte >> 6];
      return any != 0;
    }
    static void remove(Bits& bits, uint32_t unit) { bits[unit % block / 64] &= ~(uint64_t{1} << unit % 64); }

    ByteTrie& trie_;
    Entries &entries_, sorted_;
    ScratchVector<Unit> units_ = ScratchVector<Unit>(block, empty);
    std::vector<Block> blocks_ = std::vector<Block>(1);  // the first has no room
    std::vector<unsigned char> children_;
    std::array<size_t, 256> counts_{};  // of the texts by their next byte; 0 between two nodes
    size_t first_ = 1, nodes_ = 0;      // the first block with room for a lone child
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
