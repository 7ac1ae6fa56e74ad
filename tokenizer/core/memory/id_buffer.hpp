// Where ids are written: grows, is kept between calls, and gives back the memory of one long text.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "memory/scratch_vector.hpp"

namespace fasttoken {

class IdBuffer {
 public:
  const int32_t* data() const { return room_.data(); }
  size_t size() const { return size_; }
  void clear() {
    if (room_.size() > kept) room_ = {};
    size_ = 0;
  }
  // The end, with room for n more; ids written there count after finish().
  int32_t* room(size_t n) {
    if (size_ + n > room_.size()) grow(size_ + n);
    return room_.data() + size_;
  }
  const int32_t* limit() const { return room_.data() + room_.size(); }
  void finish(const int32_t* end) { size_ = static_cast<size_t>(end - data()); }
  void push_back(int32_t id) {
    *room(1) = id;
    ++size_;
  }

 private:
  static constexpr size_t kept = size_t{1} << 18;  // 1 MB
  void grow(size_t least) {
    ScratchVector<int32_t> wider(std::max(least, std::max<size_t>(256, room_.size() * 2)));
    std::copy_n(room_.data(), size_, wider.data());
    room_ = std::move(wider);
  }
  ScratchVector<int32_t> room_;
  size_t size_ = 0;
};

}  // namespace fasttoken
