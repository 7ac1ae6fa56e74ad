// The token of each character that is one, in pages of 256 code points.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/table_array.hpp"
#include "unicode/unicode.hpp"

namespace fasttoken {

class CharacterIds {
 public:
  static constexpr uint32_t none = UINT32_MAX;

  // Empty, and ready for set().
  void clear() {
    pages_.assign(code_points / 256, 0);
    ids_.assign(256, none);
  }
  void set(uint32_t c, uint32_t id) {
    uint16_t& page = pages_[c >> 8];
    if (page == 0) {
      page = static_cast<uint16_t>(ids_.size() / 256);
      ids_.resize(ids_.size() + 256, none);
    }
    ids_[size_t{page} * 256 + (c & 255)] = id;
  }
  uint32_t find(uint32_t c) const { return ids_[size_t{pages_[c >> 8]} * 256 + (c & 255)]; }

  size_t bytes() const { return pages_.bytes() + ids_.bytes(); }
  template <class Self, class Io>
  static void tables(Self& self, Io& io) {
    io.array(self.pages_);
    io.array(self.ids_);
  }

 private:
  TableArray<uint16_t> pages_;  // code point >> 8 -> page of ids_
  TableArray<uint32_t> ids_;
};

}  // namespace fasttoken
