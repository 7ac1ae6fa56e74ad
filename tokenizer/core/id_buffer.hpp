// Where ids are written: grows, is kept between calls, and gives back what one long text made it take.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace fasttoken {

class IdBuffer {
 public:
  const int32_t* data() const { return data_.get(); }
  size_t size() const { return size_; }
  void clear() {
    if (room_ > kept) {
      data_.reset();
      room_ = 0;
    }
    size_ = 0;
  }
  // The end, with room for n more; what is written there counts after finish().
  int32_t* room(size_t n) {
    if (size_ + n > room_) grow(size_ + n);
    return data_.get() + size_;
  }
  const int32_t* limit() const { return data_.get() + room_; }
  void finish(const int32_t* end) { size_ = static_cast<size_t>(end - data_.get()); }
  void push_back(int32_t id) {
    *room(1) = id;
    ++size_;
  }

 private:
  static constexpr size_t kept = size_t{1} << 18;  // 1 MB
  struct Free {
    void operator()(int32_t* p) const { std::free(p); }
  };
  void grow(size_t least) {
    size_t n = std::max(least, std::max<size_t>(256, room_ * 2));
    auto* p = static_cast<int32_t*>(std::realloc(data_.get(), n * sizeof(int32_t)));
    if (!p) throw std::bad_alloc();
    (void)data_.release();
    data_.reset(p);
    room_ = n;
  }
  std::unique_ptr<int32_t, Free> data_;
  size_t size_ = 0, room_ = 0;
};

}  // namespace fasttoken
