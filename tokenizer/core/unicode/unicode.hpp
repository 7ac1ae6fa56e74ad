// Properties of code points, expanded once from the generated runs into a two-level table.
//
//   code point --> page of c >> 8 --> record --> category, class, flags
//
//   normal forms   an iterator of (character, change) as HF's normalization crate yields them: change 0
//                  replaces a source character, 1 inserts, -n replaces one and removes n more. Offsets
//                  depend on it, so the order of sorting and composing below is part of the contract.
//
//   invariants     immutable after the first use of ucd(); any thread reads it without a lock
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "memory/scratch_vector.hpp"
#include "text/utf8.hpp"
#include "unicode/unicode_tables.hpp"

namespace fasttoken {

// The order of make_tables.py.
enum UnicodeFlag : uint16_t {
  onig_space = 1 << 0,
  onig_word = 1 << 1,
  rust_space = 1 << 2,
  rust_numeric = 1 << 3,
  rust_word = 1 << 4,
  re_space = 1 << 5,
  punctuation = 1 << 6,
  bert_removed = 1 << 7,
  bert_space = 1 << 8,
  bert_cjk = 1 << 9,
  mark_nonspacing = 1 << 10,
  combining_mark = 1 << 11,
  nmt_removed = 1 << 12,
  nmt_space = 1 << 13,
  nfc_dirty = 1 << 14,
  composes_back = 1 << 15,
};

inline constexpr uint32_t code_points = 0x110000;
inline constexpr std::string_view category_names[] = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl",
                                                      "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc",
                                                      "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};

struct Changed {
  uint32_t c;
  int32_t change;
  uint8_t k;  // its combining class
};

// The properties by which a step of normalization leaves a character alone: one look-up for all of them.
enum Quick : uint8_t {
  quick_mark = 1 << 0,       // its combining class is not 0
  quick_canonical = 1 << 1,  // has a canonical decomposition
  quick_lower = 1 << 2,      // has another lower case
  quick_nfc = 1 << 3,        // NFC may change or join it
  quick_cjk = 1 << 4,
  quick_nonspacing = 1 << 5,
  quick_clean = 1 << 6,  // removed, or made a space, by BERT's cleaning
};

// A value of 8 or 16 bits for each code point, in pages that are kept once.
template <class T>
class PagedTable {
 public:
  using Page = std::array<T, 256>;
  T operator[](uint32_t c) const { return pages_[at_[c >> 8]][c & 255]; }
  // Pages come in order.
  void add(const Page& page) {
    if (std::all_of(page.begin(), page.end(), [&](T v) { return v == page[0]; })) return add(page[0]);
    at_[added_++] = static_cast<uint16_t>(pages_.size());
    pages_.push_back(page);
  }
  // A page of one value. There are many, of few values, and one is kept of each.
  void add(T value) {
    for (uint16_t one : even_)
      if (pages_[one][0] == value) {
        at_[added_++] = one;
        return;
      }
    even_.push_back(static_cast<uint16_t>(pages_.size()));
    at_[added_++] = even_.back();
    pages_.emplace_back().fill(value);
  }
  // Whether the page of c has nothing but zeros.
  bool none(uint32_t c) const {
    uint16_t at = at_[c >> 8];
    return pages_[at][0] == 0 && std::find(even_.begin(), even_.end(), at) != even_.end();
  }

 private:
  std::array<uint16_t, code_points / 256> at_{};
  std::vector<Page> pages_;
  std::vector<uint16_t> even_;
  size_t added_ = 0;
};

class Unicode {
 public:
  // A sorted mapping of code points to short sequences.
  struct Mapping {
    const unsigned* keys;
    unsigned size;
    const unsigned short* index;
    const unsigned* flat;
    std::span<const unsigned> find(uint32_t c) const {
      const unsigned* at = std::lower_bound(keys, keys + size, c);
      if (at == keys + size || *at != c) return {};
      size_t i = static_cast<size_t>(at - keys);
      return {flat + index[i], static_cast<size_t>(index[i + 1] - index[i])};
    }
  };

  static constexpr uint32_t hangul = 0xAC00, hangul_end = 0xD7A4;
  static constexpr uint32_t jamo_l = 0x1100, jamo_v = 0x1161, jamo_t = 0x11A7;

  Unicode() {
    using namespace tables;
    for (unsigned i = 0; i < pair_first_size; ++i) {
      size_t at = pair_place(pair_first[i], pair_second[i]);
      while (pairs_[at].result) at = (at + 1) % pairs_.size();
      pairs_[at] = {pair_first[i], pair_second[i], pair_result[i]};
    }
    place(canonical_, canonical_keys, canonical_keys_size);
    place(compatible_, compatible_keys, compatible_keys_size);
    place(lower_, lower_keys, lower_keys_size);
    PagedTable<uint8_t>::Page page, quick;
    unsigned run = 0;
    for (uint32_t first = 0; first < code_points; first += 256) {
      while (run + 1 < run_start_size && run_start[run + 1] <= first) ++run;
      bool plain = canonical_.none(first) && lower_.none(first) && (first + 256 <= hangul || first >= hangul_end);
      bool whole = run + 1 == run_start_size || run_start[run + 1] >= first + 256;
      if (plain && whole) {  // most of them
        record_.add(static_cast<uint8_t>(run_record[run]));
        quick_.add(quick_of(run_record[run]));
        continue;
      }
      for (uint32_t c = first; c < first + 256;) {
        while (run + 1 < run_start_size && run_start[run + 1] <= c) ++run;
        uint32_t end = run + 1 < run_start_size ? std::min(run_start[run + 1], first + 256) : first + 256;
        std::fill(&page[c - first], page.data() + (end - first), static_cast<uint8_t>(run_record[run]));
        std::fill(&quick[c - first], quick.data() + (end - first), quick_of(run_record[run]));
        c = end;
      }
      for (uint32_t c = first; c < first + 256; ++c) {
        bool syllable = c >= hangul && c < hangul_end;
        if (syllable || canonical_[c]) quick[c - first] |= quick_canonical;
        if (lower_[c]) quick[c - first] |= quick_lower;
      }
      if (first == 0) quick[' '] &= static_cast<uint8_t>(~quick_clean);  // a space becomes a space
      record_.add(page);
      quick_.add(quick);
    }
    for (uint32_t c = 0x300; c < 0x10000; ++c)
      dirty_rows_[c / 64] |= uint64_t{(quick_[c] & quick_nfc) != 0} << c % 64;
  }

  uint8_t record(uint32_t c) const { return record_[c]; }
  uint8_t quick(uint32_t c) const { return quick_[c]; }
  // Of the characters from U+0300 to U+FFFF those with quick_nfc, a bit each.
  const std::array<uint64_t, 1024>& dirty_rows() const { return dirty_rows_; }
  uint8_t combining_class(uint32_t c) const { return tables::record_class[record(c)]; }
  uint16_t flags(uint32_t c) const { return tables::record_flags[record(c)]; }
  bool is(uint32_t c, uint16_t any) const { return flags(c) & any; }

  // Empty: it is its own lower case.
  std::span<const unsigned> lower(uint32_t c) const {
    using namespace tables;
    return part(lower_[c], lower_index, lower_flat);
  }
  Mapping fold() const {
    using namespace tables;
    return {fold_keys, fold_keys_size, fold_index, fold_flat};
  }
  Mapping multifold() const {
    using namespace tables;
    return {multifold_keys, multifold_keys_size, multifold_index, multifold_flat};
  }

  // The full decomposition of c into out, which must hold 18; returns its length.
  size_t decompose(uint32_t c, bool compatible, uint32_t* out) const {
    if (c >= hangul && c < hangul_end) {
      uint32_t s = c - hangul, t = s % 28;
      out[0] = jamo_l + s / 588;
      out[1] = jamo_v + s % 588 / 28;
      if (t) out[2] = jamo_t + t;
      return t ? 3 : 2;
    }
    using namespace tables;
    std::span<const unsigned> found;
    if (compatible) found = part(compatible_[c], compatible_index, compatible_flat);
    if (found.empty()) found = part(canonical_[c], canonical_index, canonical_flat);
    if (found.empty()) {
      out[0] = c;
      return 1;
    }
    std::copy(found.begin(), found.end(), out);
    return found.size();
  }

  // The composition of two characters, or 0.
  uint32_t compose(uint32_t a, uint32_t b) const {
    if (a - jamo_l < 19 && b - jamo_v < 21) return hangul + ((a - jamo_l) * 21 + (b - jamo_v)) * 28;
    if (a - hangul < hangul_end - hangul && (a - hangul) % 28 == 0 && b - jamo_t - 1 < 27) return a + (b - jamo_t);
    if (!is(b, composes_back)) return 0;
    for (size_t at = pair_place(a, b); pairs_[at].result; at = (at + 1) % pairs_.size())
      if (pairs_[at].first == a && pairs_[at].second == b) return pairs_[at].result;
    return 0;
  }

  // Append the decomposition of text, each run of marks in canonical order.
  void decomposed(std::string_view text, bool compatible, ScratchVector<Changed>& out) const {
    uint32_t parts[32];
    size_t run = out.size();  // where the marks began that stand last
    uint8_t last = 0;
    bool ordered = true;
    auto flush = [&] {
      if (!ordered) order(std::span(out).subspan(run));
      ordered = true;
      last = 0;
    };
    for (const char *p = text.data(), *end = p + text.size(); p < end;) {
      uint32_t c = utf8_next(p);
      size_t n = 1;
      if (compatible || quick(c) & quick_canonical)
        n = decompose(c, compatible, parts);
      else
        parts[0] = c;
      for (size_t i = 0; i < n; ++i) {
        uint8_t k = combining_class(parts[i]);
        if (k == 0) {
          flush();
          run = out.size() + 1;
        } else {
          ordered &= last <= k;
          last = k;
        }
        out.push_back({parts[i], i > 0, k});
      }
    }
    flush();
  }

  // Composes the result of decomposed() in place.
  void compose(ScratchVector<Changed>& all) const {
    constexpr size_t none = SIZE_MAX;
    size_t base = none, to = 0;
    int last = -1;  // class of the last mark that stayed between base and here
    for (const Changed x : all) {
      if (base != none && last < x.k) {
        if (uint32_t joined = compose(all[base].c, x.c)) {
          all[base] = {joined, all[base].change + x.change - 1, 0};
          continue;
        }
      }
      if (x.k == 0) {
        base = to;
        last = -1;
      } else {
        last = x.k;
      }
      all[to++] = x;
    }
    all.resize(to);
  }

 private:
  struct Pair {
    uint32_t first, second, result;
  };
  static constexpr size_t few_marks = 24;

  // Where the entry of each key is, plus one.
  static void place(PagedTable<uint16_t>& table, const unsigned* keys, unsigned size) {
    PagedTable<uint16_t>::Page page;
    unsigned i = 0;
    for (uint32_t first = 0; first < code_points; first += 256) {
      if (i == size || keys[i] >= first + 256) {
        table.add(0);
        continue;
      }
      page.fill(0);
      for (; i < size && keys[i] < first + 256; ++i) page[keys[i] - first] = static_cast<uint16_t>(i + 1);
      table.add(page);
    }
  }
  static std::span<const unsigned> part(size_t place, const unsigned short* index, const unsigned* flat) {
    if (!place) return {};
    return {flat + index[place - 1], static_cast<size_t>(index[place] - index[place - 1])};
  }
  static uint8_t quick_of(unsigned record) {
    uint16_t flags = tables::record_flags[record];
    return static_cast<uint8_t>((tables::record_class[record] ? quick_mark : 0) |
                                (flags & nfc_dirty ? quick_nfc : 0) | (flags & bert_cjk ? quick_cjk : 0) |
                                (flags & mark_nonspacing ? quick_nonspacing : 0) |
                                (flags & (bert_removed | bert_space) ? quick_clean : 0));
  }
  size_t pair_place(uint32_t a, uint32_t b) const { return (a * 0x9E3779B1u ^ b * 0x85EBCA77u) >> 21; }

  // By class, equal ones as they were; in time that grows with the run.
  static void order(std::span<Changed> marks) {
    if (marks.size() > few_marks) {
      std::array<size_t, 257> next{};
      for (const Changed& m : marks) ++next[m.k + 1u];
      for (size_t k = 0; k < 256; ++k) next[k + 1] += next[k];
      ScratchVector<Changed> before(marks.begin(), marks.end());
      for (const Changed& m : before) marks[next[m.k]++] = m;
      return;
    }
    for (size_t i = 1; i < marks.size(); ++i) {
      Changed m = marks[i];
      size_t at = i;
      for (; at > 0 && marks[at - 1].k > m.k; --at) marks[at] = marks[at - 1];
      marks[at] = m;
    }
  }

  PagedTable<uint8_t> record_, quick_;
  std::array<uint64_t, 1024> dirty_rows_{};
  PagedTable<uint16_t> canonical_, compatible_, lower_;
  std::array<Pair, 2048> pairs_{};  // canonical compositions, by hash
};

inline const Unicode& ucd() {
  static const Unicode unicode;
  return unicode;
}

}  // namespace fasttoken
