// A zeroed array of trivial things that is read at random: aligned to cache lines, and on huge pages where the
// system gives them for the asking, since a look-up else costs a miss of the page table as well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace fasttoken {

template <class T>
class BigArray {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  BigArray() = default;
  explicit BigArray(size_t n) : size_(n) {
    size_t bytes = n * sizeof(T), align = bytes >= huge ? huge : 128;
    memory_.reset(std::calloc(1, bytes + align));
    if (!memory_) throw std::bad_alloc();
    uintptr_t at = (reinterpret_cast<uintptr_t>(memory_.get()) + align - 1) / align * align;
    data_ = reinterpret_cast<T*>(at);
#ifdef MADV_HUGEPAGE
    if (bytes >= huge) (void)madvise(data_, bytes / huge * huge, MADV_HUGEPAGE);
#endif
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }

 private:
  static constexpr size_t huge = size_t{2} << 20;
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> memory_;
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace fasttoken
