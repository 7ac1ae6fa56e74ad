// A value for each code point, in pages of 256. Pages of one value throughout are kept once for each value.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "memory/table_array.hpp"

namespace fasttoken {

inline constexpr uint32_t code_points = 0x110000;

template <class T>
class PagedTable {
 public:
  // All have this value.
  explicit PagedTable(T everywhere = {}) { even(everywhere); }

  T operator[](uint32_t c) const { return *at(c); }
  // Those of the code points behind it in its page follow.
  const T* at(uint32_t c) const { return pages_.data() + size_t{at_[c >> 8]} * 256 + (c & 255); }

  // Of code points from `first` up to `end` the value becomes f(value).
  template <class F>
  void change(uint32_t first, uint32_t end, F&& f) {
    for (uint32_t c = first; c < end;) {
      const uint32_t stop = std::min((c | 255) + 1, end);
      uint16_t& page = at_[c >> 8];
      const T value = pages_[size_t{page} * 256];
      if (is_even(page)) page = stop - c == 256 ? even(f(value)) : add(value);
      if (is_even(page)) c = stop;
      for (T* own = &pages_[size_t{page} * 256]; c < stop; ++c) own[c & 255] = f(own[c & 255]);
    }
  }
  void set(uint32_t first, uint32_t end, T value) {
    change(first, end, [&](T) { return value; });
  }
  void set(uint32_t c, T value) { set(c, c + 1, value); }

  void tables(auto& io) { io(at_, pages_); }

 private:
  uint16_t even(T value) {
    for (uint16_t page : even_)
      if (pages_[size_t{page} * 256] == value) return page;
    even_.push_back(add(value));
    return even_.back();
  }
  bool is_even(uint16_t page) const { return std::find(even_.begin(), even_.end(), page) != even_.end(); }
  uint16_t add(T value) {
    pages_.resize(pages_.size() + 256, value);
    return static_cast<uint16_t>(pages_.size() / 256 - 1);
  }

  std::array<uint16_t, code_points / 256> at_{};
  TableArray<T> pages_;
  std::vector<uint16_t> even_;  // the pages of one value, while the table is made
};

}  // namespace fasttoken
