// The table of merges: two tokens -> the merged token and its rank.
//
//   lines_   hash(a, b) -> rank, id     8 bytes a pair, 8 pairs a cache line: a look-up touches one line
//   filter_  one bit a pair, 64 bits a line: most pairs asked for do not merge, and this small table tells so to
//            callers that look up one pair after the other; callers that prefetch lines are faster without it
//   direct_  pairs of ids below 256, which is where most files have the single bytes: a table, no hash
//   rank     the position in the file's list: the lowest merges first; the same pair again takes the later
//
//   entry    tag | distance | overflow | ... | rest
//            the hash is a bijection on pairs of ids: its top bits are the line, the others are the tag, which so
//            says which pair it is. Where that line is full, the pair is some steps further on, as many as `distance`
//            says; each line passed by has `overflow` set in its first entry, and a look-up goes on from such alone
//   rest     rank and id, subtracted from all ones: of two, the larger merges first; 0: no merge, or a free entry.
//            Where both do not fit in, the rank alone, and ids_ has the ids by rank
//
//   invariants   ids and ranks are below reserve()'s bounds; entries are taken from the first on, never freed
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "errors.hpp"
#include "memory/big_array.hpp"
#include "memory/table_array.hpp"

namespace fasttoken {

inline constexpr uint32_t no_rank = UINT32_MAX;

struct Merge {
  uint32_t a, b, rank, id;
};

class MergeTable {
 public:
  struct alignas(64) Line {
    static constexpr size_t entries = 8;
    uint64_t entry[entries];
  };
  static constexpr uint32_t direct = 256;
  static constexpr int most_rest_bits = 57;  // a rest and a position of 6 bits are a positive number

  // How keys and entries are made up.
  struct Layout {
    uint64_t compared, distance, overflow, rest_mask, id_mask;
    uint32_t id_bits, line_bits, rank_shift;  // id_mask, rank_shift: 0 where ids are not in the rests
    uint32_t first, second, not_line_bits;    // 64 less one and two ids, and less line_bits
  };
  // The table as a loop keeps it in registers.
  struct Probe : Layout {
    const Line* lines;
    const uint64_t *direct_rests, *filter;
    const uint32_t* ids;  // by rank; null: the rests have them

    // Where a pair is looked for first: the entry there that equals the key in the bits of `compared`.
    struct Place {
      const Line* line;
      uint64_t key;
    };
    Place place(uint32_t a, uint32_t b) const {
      uint64_t h = (uint64_t{a} << first | uint64_t{b} << second) * odd;
      return {lines + (h >> not_line_bits), h << line_bits};
    }
    // The rest of the entry with that key, 0 if the line has none.
    [[gnu::always_inline]] uint64_t match(const Line& line, uint64_t key) const {
      uint64_t found = 0;
      for (uint64_t entry : line.entry) found |= (entry ^ key) & compared ? 0 : entry;  // free ones add nothing
      return found & rest_mask;
    }
    // The same of the lines behind one that has overflowed.
    [[gnu::noinline, gnu::cold]] uint64_t beyond(Place at) const {
      size_t line = static_cast<size_t>(at.line - lines);
      const size_t by = step(at.key);
      for (size_t i = 1; i < reach && lines[line].entry[0] & overflow; ++i) {
        line = (line + by) & ((size_t{1} << line_bits) - 1);
        if (uint64_t rest = match(lines[line], at.key += distance)) return rest;
      }
      return 0;
    }
    [[gnu::always_inline]] uint64_t find(uint32_t a, uint32_t b) const {
      if ((a | b) < direct) return direct_rests[a * direct + b];
      Place at = place(a, b);
      if (!(filter[at.line - lines] >> (at.key >> 58) & 1)) return 0;
      for (uint64_t entry : at.line->entry)
        if (((entry ^ at.key) & compared) == 0) return entry & rest_mask;
      return at.line->entry[0] & overflow ? beyond(at) : 0;
    }
    // Of a rest that is not 0.
    uint32_t rank(uint64_t rest) const { return static_cast<uint32_t>((~rest & rest_mask) >> rank_shift); }
    uint32_t id(uint64_t rest) const { return ids ? ids[rank(rest)] : static_cast<uint32_t>(~rest & id_mask); }
  };
  MergeTable() { reserve(0, 1); }
  MergeTable(const MergeTable&) = delete;
  const Probe& probe() const { return probe_; }

  // ids: past the highest.
  void reserve(size_t merges, uint32_t ids) {
    most_ = merges;
    const int id_bits = std::max(1, static_cast<int>(std::bit_width(ids)));
    int line_bits = 1;  // at most 5/8 full
    while (Line::entries * 5 / 8 << line_bits < merges) ++line_bits;
    direct_.assign(direct * direct, 0);
    lay_out(id_bits, std::min(line_bits, 2 * id_bits));
    most_line_bits_ = probe_.line_bits + 3;
  }

  // Prefetches the memory that add() reads.
  void prefetch(uint32_t a, uint32_t b) const {
    const Line* line = probe_.place(a, b).line;
    __builtin_prefetch(line, 1);
    __builtin_prefetch(probe_.filter + (line - probe_.lines), 1);
  }
  // Whether the pair is new.
  bool add(uint32_t a, uint32_t b, uint32_t rank, uint32_t id) {
    const uint64_t rest = ~(uint64_t{rank} << probe_.rank_shift | (ids_.empty() ? id : 0)) & probe_.rest_mask;
    if ((a | b) < direct) direct_[a * direct + b] = rest;
    if (!ids_.empty()) ids_[rank] = id;
    uint64_t* entry = entry_for(a, b);
    while (!entry) {
      spread();
      entry = entry_for(a, b);
    }
    bool fresh = (*entry & probe_.rest_mask) == 0;
    *entry = (*entry & ~probe_.rest_mask) | rest;
    return fresh;
  }

  // rank no_rank: they do not merge.
  [[gnu::always_inline]] Merge find(uint32_t a, uint32_t b) const {
    uint64_t rest = probe_.find(a, b);
    if (!rest) return {a, b, no_rank, 0};
    return {a, b, probe_.rank(rest), probe_.id(rest)};
  }

  // All there are, by rank.
  std::vector<Merge> in_order() const {
    const Probe& t = probe_;
    std::vector<Merge> out;
    for (size_t line = 0; line < lines_.size(); ++line) {
      for (uint64_t entry : lines_[line].entry) {
        uint64_t rest = entry & t.rest_mask;
        if (!rest) continue;
        uint64_t steps = entry / t.distance % reach, tag = entry & t.compared & ~(t.distance * (reach - 1));
        uint64_t own = (line - steps * step(tag)) & (lines_.size() - 1);
        uint64_t pair = (own << t.not_line_bits | tag >> t.line_bits) * inverse(odd);
        out.push_back({static_cast<uint32_t>(pair >> t.first), static_cast<uint32_t>(pair << t.id_bits >> t.first),
                       t.rank(rest), t.id(rest)});
      }
    }
    std::sort(out.begin(), out.end(), [](const Merge& x, const Merge& y) { return x.rank < y.rank; });
    return out;
  }
  void tables(auto& io) {
    io(lines_, filter_, ids_, direct_, static_cast<Layout&>(probe_));
    if (io.reads) point();
  }

 private:
  // A product's top bits are as good as random ones here: as many lines of real files overflow as would then.
  static constexpr uint64_t odd = 0x9E3779B97F4A7C15u;
  static constexpr uint64_t inverse(uint64_t x) {
    uint64_t out = x;
    for (int i = 0; i < 5; ++i) out *= 2 - x * out;
    return out;
  }
  static constexpr int distance_bits = 3;
  static constexpr uint64_t reach = 1 << distance_bits;  // lines from its own on in which a pair may be
  // From one to the next; of a key with no distance yet. Not the same for all, so that full lines are not next to
  // each other.
  static size_t step(uint64_t key) { return key >> 56 | 1; }

  void point() {
    probe_.lines = lines_.data();
    probe_.direct_rests = direct_.data();
    probe_.filter = filter_.data();
    probe_.ids = ids_.empty() ? nullptr : ids_.data();
  }
  void lay_out(int id_bits, int line_bits) {
    const int rank_bits = std::max(1, static_cast<int>(std::bit_width(most_)));
    const int key_bits = 2 * id_bits - line_bits + distance_bits;
    if (key_bits + 1 + rank_bits > 64 || rank_bits > most_rest_bits)
      throw Unsupported("merges of tokens with ids so large", "model.merges");
    const bool with_ids = rank_bits + id_bits <= most_rest_bits && key_bits + 1 + rank_bits + id_bits <= 64;
    auto low = [](int bits) { return (uint64_t{1} << bits) - 1; };
    auto number = [](int n) { return static_cast<uint32_t>(n); };
    static_cast<Layout&>(probe_) = {~low(64 - key_bits),
                                    uint64_t{1} << (64 - key_bits),
                                    uint64_t{1} << (63 - key_bits),
                                    low(rank_bits + (with_ids ? id_bits : 0)),
                                    low(with_ids ? id_bits : 0),
                                    number(id_bits),
                                    number(line_bits),
                                    number(with_ids ? id_bits : 0),
                                    number(64 - id_bits),
                                    number(64 - 2 * id_bits),
                                    number(64 - line_bits)};
    lines_ = BigArray<Line>(size_t{1} << line_bits);
    filter_.assign(lines_.size(), 0);
    ids_.assign(with_ids ? 0 : most_, 0);
    point();
  }
  // Where the pair is, or where it is to be and its key now is; null if there is no place near enough.
  uint64_t* entry_for(uint32_t a, uint32_t b) {
    auto [at, key] = probe_.place(a, b);
    size_t line = static_cast<size_t>(at - probe_.lines);
    const size_t by = step(key);
    filter_[line] |= uint64_t{1} << (key >> 58);
    for (size_t i = 0; i < reach; ++i, key += probe_.distance, line = (line + by) & (lines_.size() - 1)) {
      for (uint64_t& entry : lines_[line].entry) {
        if (!(entry & probe_.rest_mask)) entry = key;
        if (((entry ^ key) & probe_.compared) == 0) return &entry;
      }
      lines_[line].entry[0] |= probe_.overflow;
    }
    return nullptr;
  }
  // Twice the lines.
  void spread() {
    if (probe_.line_bits >= std::min(most_line_bits_, 2 * probe_.id_bits))
      throw Unsupported("pairs of tokens that are hashed alike", "model.merges");
    std::vector<Merge> all = in_order();
    lay_out(static_cast<int>(probe_.id_bits), static_cast<int>(probe_.line_bits) + 1);
    for (const Merge& m : all) add(m.a, m.b, m.rank, m.id);
  }

  Probe probe_{};
  BigArray<Line> lines_;
  TableArray<uint64_t> filter_, direct_;
  TableArray<uint32_t> ids_;
  size_t most_ = 0;
  uint32_t most_line_bits_ = 0;
};

}  // namespace fasttoken
