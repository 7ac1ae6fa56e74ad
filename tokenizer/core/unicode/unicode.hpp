// Properties of code points, expanded once from the generated runs; any thread reads them without a lock.
//
//   normal forms   characters and changes as HF's normalization crate yields them: change 0 replaces a source
//                  character, 1 inserts, -n replaces one and removes n more. Offsets depend on it, so the order of
//                  sorting and composing below is part of the contract.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "memory/scratch_vector.hpp"
#include "text/utf8.hpp"
#include "unicode/paged_table.hpp"
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

// Calls f(first, end, i) for each run of a table: the code points from starts[i] up to the next one's start.
template <class F>
void each_run(const unsigned* starts, unsigned size, F&& f) {
  for (unsigned i = 0; i < size; ++i) f(starts[i], i + 1 < size ? starts[i + 1] : code_points, i);
}

class Unicode {
 public:
  // A sorted mapping of code points to short sequences.
  struct Mapping {
    const unsigned* keys;
    unsigned size;
    const unsigned short* index;
    const unsigned* flat;
    // Of keys[i].
    std::span<const unsigned> operator[](size_t i) const {
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
    each_run(run_start, run_start_size, [&](uint32_t first, uint32_t end, unsigned i) {
      record_.set(first, end, static_cast<uint8_t>(run_record[i]));
      quick_.set(first, end, quick_of(run_record[i]));
    });
    const auto add = [&](uint32_t first, uint32_t end, uint8_t bit) {
      quick_.change(first, end, [&](uint8_t bits) { return static_cast<uint8_t>(bits | bit); });
    };
    add(hangul, hangul_end, quick_canonical);
    for (unsigned i = 0; i < canonical_keys_size; ++i) add(canonical_keys[i], canonical_keys[i] + 1, quick_canonical);
    for (unsigned i = 0; i < lower_keys_size; ++i) add(lower_keys[i], lower_keys[i] + 1, quick_lower);
    quick_.set(' ', quick_[' '] & static_cast<uint8_t>(~quick_clean));  // a space becomes a space
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
      if (!ordered)  // equal ones stay as they were
        std::stable_sort(out.begin() + static_cast<std::ptrdiff_t>(run), out.end(),
                         [](const Changed& a, const Changed& b) { return a.k < b.k; });
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

  // Where the entry of each key is, plus one.
  static void place(PagedTable<uint16_t>& table, const unsigned* keys, unsigned size) {
    for (unsigned i = 0; i < size; ++i) table.set(keys[i], static_cast<uint16_t>(i + 1));
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
