// The alphabet of one pattern: code points that no set of the pattern tells apart share a class.
//
//   code point --> page_[c >> 8] --> class_[page * 256 + (c & 255)] --> class 0..61
//   set of the pattern --> 64-bit mask of classes;   "is c in the set" is one shift
//
//   A text is first turned into classes, one byte for each of its bytes: the class where a character
//   begins, `inside` on its continuation bytes, `past` at the end. No set contains these two.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "unicode/charset.hpp"

namespace fasttoken {

class CharClasses {
 public:
  static constexpr uint8_t past = 62, inside = 63;
  static constexpr uint64_t every = (uint64_t{1} << 62) - 1;

  // Returns false if the sets make more than 62 classes or are more than 64.
  bool build(const std::vector<CharSet>& sets) {
    if (sets.size() > 64) return false;
    struct Event {
      uint32_t at;
      uint64_t flip;
    };
    std::vector<Event> events;
    for (size_t i = 0; i < sets.size(); ++i) {
      for (auto& r : sets[i].ranges()) {
        events.push_back({r.first, uint64_t{1} << i});
        events.push_back({r.last + 1, uint64_t{1} << i});
      }
    }
    std::sort(events.begin(), events.end(), [](auto& a, auto& b) { return a.at < b.at; });
    std::map<uint64_t, uint8_t> ids;
    masks_.assign(sets.size(), 0);
    std::vector<uint8_t> flat(code_points);
    uint64_t now = 0;
    for (size_t e = 0, c = 0; c < code_points;) {
      while (e < events.size() && events[e].at == c) now ^= events[e++].flip;
      size_t next = e < events.size() ? events[e].at : code_points;
      auto [at, fresh] = ids.try_emplace(now, static_cast<uint8_t>(ids.size()));
      if (fresh) {
        if (ids.size() > past) return false;
        for (size_t i = 0; i < sets.size(); ++i)
          if (now >> i & 1) masks_[i] |= uint64_t{1} << at->second;
      }
      std::fill(flat.begin() + static_cast<long>(c), flat.begin() + static_cast<long>(next), at->second);
      c = next;
    }
    pack(flat);
    return true;
  }

  uint64_t mask(size_t set) const { return masks_[set]; }
  uint8_t of(uint32_t c) const { return class_[size_t{page_[c >> 8]} * 256 + (c & 255)]; }

  uint8_t ascii(unsigned char c) const { return ascii_[c]; }

  // One class a byte, and `past` after the last.
  void classify(std::string_view text, std::vector<uint8_t>& out) const {
    if (out.size() < text.size() + 1) out.resize(text.size() + 1);
    const char *p = text.data(), *end = p + text.size();
    uint8_t* to = out.data();
    while (p < end) {
      unsigned char b = static_cast<unsigned char>(*p);
      if (b < 0x80) {
        *to++ = ascii_[b];
        ++p;
        continue;
      }
      const char* from = p;
      *to++ = of(utf8_next(p));
      for (++from; from < p; ++from) *to++ = inside;
    }
    *to = past;
  }

 private:
  void pack(const std::vector<uint8_t>& flat) {
    std::map<std::string_view, uint16_t> seen;
    class_.clear();
    for (uint32_t p = 0; p < code_points / 256; ++p) {
      std::string_view page(reinterpret_cast<const char*>(flat.data()) + size_t{p} * 256, 256);
      auto [at, fresh] = seen.try_emplace(page, static_cast<uint16_t>(seen.size()));
      if (fresh) class_.insert(class_.end(), page.begin(), page.end());
      page_[p] = at->second;
    }
    for (uint32_t c = 0; c < 128; ++c) ascii_[c] = flat[c];
  }

  std::vector<uint64_t> masks_;
  std::array<uint8_t, 128> ascii_{};
  std::array<uint16_t, code_points / 256> page_{};
  std::vector<uint8_t> class_;
};

}  // namespace fasttoken
