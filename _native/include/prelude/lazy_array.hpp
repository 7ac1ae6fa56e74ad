// A fixed array of zeroes whose pages are only backed by memory once they are written.
//
// A pool of a million blocks is made in microseconds and costs memory for its used part. Large arrays ask for huge
// pages: random access over tens of megabytes is otherwise mostly page-table walks.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>
#include <type_traits>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace prelude {

template <class T>
class LazyArray {
  // Zero bytes have to be a valid T (atomics of integers are, on every compiler we build with).
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  explicit LazyArray(size_t size) : size_(size) {
    const size_t bytes = size * sizeof(T) + kLine;
#if defined(__linux__)
    if (bytes >= kHuge) {
      // Owned by this object; the slack before the first 2 MiB boundary is never touched, so it costs nothing.
      mapped_ = bytes + kHuge;
      base_ = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (base_ == MAP_FAILED) throw std::bad_alloc();
      data_ = align(base_, kHuge);
      ::madvise(data_, bytes, MADV_HUGEPAGE);  // a wish: refusal is fine
      return;
    }
#endif
    base_ = std::calloc(1, bytes);
    if (base_ == nullptr) throw std::bad_alloc();
    data_ = align(base_, kLine);
  }
  ~LazyArray() {
#if defined(__linux__)
    if (mapped_ != 0) {
      ::munmap(base_, mapped_);
      return;
    }
#endif
    std::free(base_);
  }
  LazyArray(const LazyArray&) = delete;
  LazyArray& operator=(const LazyArray&) = delete;

  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  static constexpr size_t kLine = 64;
  static constexpr size_t kHuge = size_t{2} << 20;
  static T* align(void* p, size_t to) {
    const auto at = reinterpret_cast<size_t>(p);
    return reinterpret_cast<T*>((at + to - 1) & ~(to - 1));
  }

  size_t size_;
  size_t mapped_ = 0;
  void* base_ = nullptr;
  T* data_ = nullptr;
};

}  // namespace prelude
