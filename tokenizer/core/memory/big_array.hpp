// A zeroed array of trivial things that is read at random: aligned to cache lines, and on huge pages where the
// system gives them for the asking, since a look-up else costs a miss of the page table as well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "memory/scratch_vector.hpp"

namespace fasttoken {

template <class T>
class BigArray {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  using Free = std::function<void(void*)>;

  BigArray() = default;
  // huge_pages: a page is cleared when it is touched first, so that an array of which little is used at first comes
  // sooner from small ones.
  explicit BigArray(size_t n, bool huge_pages = true) : size_(n) {
    const size_t all = n * sizeof(T);
    constexpr size_t align = 128;
    if (all >= large_memory::page) {
      memory_ = {large_memory::map(all, huge_pages ? all / large_memory::page * large_memory::page : 0),
                 [all](void* p) { large_memory::give_back(p, all); }};
    } else {
      memory_ = {std::calloc(1, all + align), std::free};
      if (!memory_) throw std::bad_alloc();
    }
    data_ = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(memory_.get()) + align - 1) / align * align);
  }
  // Of n elements that lie elsewhere and are only read; null: their owner outlives this.
  BigArray(const T* data, size_t n, Free free) : data_(const_cast<T*>(data)), size_(n) {
    if (free) memory_ = {data_, std::move(free)};
  }

  // Has the system give the pages of the first n bytes now; they are zeros as before.
  void touch(size_t n) {
    constexpr size_t page = 4096;
    volatile char* at = reinterpret_cast<char*>(data_);
    for (size_t i = 0; i < n; i += page) at[i] = 0;
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  size_t bytes() const { return size_ * sizeof(T); }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }

 private:
  std::unique_ptr<void, Free> memory_{nullptr, [](void*) {}};
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace fasttoken
