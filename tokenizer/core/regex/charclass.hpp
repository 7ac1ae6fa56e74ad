// The alphabet of one pattern: code points that no set of the pattern tells apart share a class of 0..61, and a set
// is a mask of 64 bits. A text is first turned into classes, one byte for each of its bytes: the class where a
// character begins, `inside` on its continuation bytes, `past` at the end. No set contains these two.
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
    uint64_t now = 0;
    for (uint32_t e = 0, c = 0; c < code_points;) {
      while (e < events.size() && events[e].at == c) now ^= events[e++].flip;
      uint32_t next = e < events.size() ? events[e].at : code_points;
      auto [at, fresh] = ids.try_emplace(now, static_cast<uint8_t>(ids.size()));
      if (fresh) {
        if (ids.size() > past) return false;
        for (size_t i = 0; i < sets.size(); ++i)
          if (now >> i & 1) masks_[i] |= uint64_t{1} << at->second;
      }
      classes_.set(c, next, at->second);
      c = next;
    }
    std::copy_n(classes_.at(0), 128, ascii_.begin());
    return true;
  }

  uint64_t mask(size_t set) const { return masks_[set]; }
  uint8_t of(uint32_t c) const { return classes_[c]; }

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
  std::vector<uint64_t> masks_;
  std::array<uint8_t, 128> ascii_{};
  PagedTable<uint8_t> classes_;
};

}  // namespace fasttoken
