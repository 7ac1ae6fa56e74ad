// Properties of code points, expanded once from the generated runs into a two-level table.
//
//   code point --> page_[c >> 8] --> record_[page * 256 + (c & 255)] --> category, class, flags
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
#include <utility>
#include <vector>

#include "unicode_tables.hpp"
#include "utf8.hpp"

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
    std::vector<uint8_t> page(256);
    std::vector<std::vector<uint8_t>> seen;
    unsigned run = 0;
    for (uint32_t c = 0; c < code_points; ++c) {
      while (run + 1 < run_start_size && run_start[run + 1] <= c) ++run;
      page[c & 255] = static_cast<uint8_t>(run_record[run]);
      if ((c & 255) != 255) continue;
      auto same = std::find(seen.begin(), seen.end(), page);
      page_[c >> 8] = static_cast<uint16_t>(same - seen.begin());
      if (same == seen.end()) seen.push_back(page);
    }
    for (auto& p : seen) record_.insert(record_.end(), p.begin(), p.end());
    for (unsigned i = 0; i < canonical_keys_size; ++i) decomposes_.add(canonical_keys[i]);
    for (unsigned i = 0; i < compatible_keys_size; ++i) decomposes_.add(compatible_keys[i]);
    for (unsigned i = 0; i < lower_keys_size; ++i) lowers_.add(lower_keys[i]);
  }

  uint8_t record(uint32_t c) const { return record_[size_t{page_[c >> 8]} * 256 + (c & 255)]; }
  uint8_t category(uint32_t c) const { return tables::record_category[record(c)]; }
  uint8_t combining_class(uint32_t c) const { return tables::record_class[record(c)]; }
  uint16_t flags(uint32_t c) const { return tables::record_flags[record(c)]; }
  bool is(uint32_t c, uint16_t any) const { return flags(c) & any; }

  Mapping lower() const {
    using namespace tables;
    return {lower_keys, lower_keys_size, lower_index, lower_flat};
  }
  bool lowers(uint32_t c) const { return lowers_.may_have(c); }
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
    if (!decomposes_.may_have(c) && !(c >= hangul && c < hangul_end)) {
      out[0] = c;
      return 1;
    }
    if (c >= hangul && c < hangul_end) {
      uint32_t s = c - hangul, t = s % 28;
      out[0] = jamo_l + s / 588;
      out[1] = jamo_v + s % 588 / 28;
      if (t) out[2] = jamo_t + t;
      return t ? 3 : 2;
    }
    using namespace tables;
    std::span<const unsigned> found;
    if (compatible) found = Mapping{compatible_keys, compatible_keys_size, compatible_index, compatible_flat}.find(c);
    if (found.empty()) found = Mapping{canonical_keys, canonical_keys_size, canonical_index, canonical_flat}.find(c);
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
    using namespace tables;
    const unsigned* end = pair_first + pair_first_size;
    const unsigned* at = std::lower_bound(pair_first, end, a);
    for (; at != end && *at == a; ++at) {
      size_t i = static_cast<size_t>(at - pair_first);
      if (pair_second[i] == b) return pair_result[i];
    }
    return 0;
  }

  // Append the decomposition of text, each run of marks in canonical order.
  void decomposed(std::string_view text, bool compatible, std::vector<Changed>& out) const {
    uint32_t parts[32];
    std::vector<std::pair<uint8_t, Changed>> marks;
    auto settle = [&] {
      std::stable_sort(marks.begin(), marks.end(), [](auto& x, auto& y) { return x.first < y.first; });
      for (auto& m : marks) out.push_back(m.second);
      marks.clear();
    };
    for (const char *p = text.data(), *end = p + text.size(); p < end;) {
      size_t n = decompose(utf8_next(p), compatible, parts);
      for (size_t i = 0; i < n; ++i) {
        uint8_t k = combining_class(parts[i]);
        if (k == 0) settle();
        Changed one{parts[i], i > 0};
        if (k == 0)
          out.push_back(one);
        else
          marks.push_back({k, one});
      }
    }
    settle();
  }

  // Compose what decomposed() gave; appends to out.
  void composed(std::span<const Changed> in, std::vector<Changed>& out) const {
    bool have = false;
    Changed base{};
    int last = -1;  // class of the last mark that stayed between base and here
    std::vector<Changed> held;
    auto flush = [&] {
      if (have) out.push_back(base);
      out.insert(out.end(), held.begin(), held.end());
      held.clear();
      have = false;
      last = -1;
    };
    for (const Changed& x : in) {
      int k = combining_class(x.c);
      if (!have) {
        if (k != 0) {
          out.push_back(x);
        } else {
          base = x;
          have = true;
        }
        continue;
      }
      if (last < k) {
        if (uint32_t joined = compose(base.c, x.c)) {
          base = {joined, base.change + x.change - 1};
          continue;
        }
      }
      if (k == 0) {
        flush();
        base = x;
        have = true;
        continue;
      }
      held.push_back(x);
      last = k;
    }
    flush();
  }

 private:
  // The keys of a mapping as bits, to say quickly that a character is not among them.
  class Keys {
   public:
    void add(uint32_t c) { bits_[c % span / 64] |= uint64_t{1} << (c & 63); }
    bool may_have(uint32_t c) const { return bits_[c % span / 64] >> (c & 63) & 1; }

   private:
    static constexpr uint32_t span = 1 << 18;
    std::array<uint64_t, span / 64> bits_{};
  };

  Keys decomposes_, lowers_;
  std::array<uint16_t, code_points / 256> page_{};
  std::vector<uint8_t> record_;
};

inline const Unicode& ucd() {
  static const Unicode unicode;
  return unicode;
}

}  // namespace fasttoken
