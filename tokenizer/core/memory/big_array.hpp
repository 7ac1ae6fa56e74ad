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
  // huge_pages: a page is cleared when it is touched first, so that an array of which little is used at first comes
  // sooner from small ones.
  explicit BigArray(size_t n, bool huge_pages = true) : size_(n) {
    size_t bytes = n * sizeof(T), align = bytes >= huge ? huge : 128;
    memory_ = memory(bytes + align);
    uintptr_t at = (reinterpret_cast<uintptr_t>(memory_.get()) + align - 1) / align * align;
    data_ = reinterpret_cast<T*>(at);
#ifdef MADV_HUGEPAGE
    if (huge_pages && bytes >= huge) (void)madvise(data_, bytes / huge * huge, MADV_HUGEPAGE);
#endif
  }

  // Has the system give the pages of the first n bytes now; they are zeros as before.
  void touch(size_t n) {
    constexpr size_t page = 4096;
    volatile char* at = reinterpret_cast<char*>(data_);
    for (size_t i = 0; i < n; i += page) at[i] = 0;
  }

  // A view of memory elsewhere, which is only read; its owner outlives this.
  static BigArray view(const T* data, size_t n) {
    BigArray made;
    made.data_ = const_cast<T*>(data);
    made.size_ = n;
    return made;
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
    size_t mapped = 0;
    void operator()(void* p) const {
#ifdef __linux__
      if (mapped) return void(munmap(p, mapped));
#endif
      std::free(p);
    }
  };
  // Zeros. Large ones from the system: heap memory may have been used, and would be cleared, so touched,
  // here.
  static std::unique_ptr<void, Free> memory(size_t bytes) {
#ifdef __linux__
    if (bytes >= huge) {
      void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (p == MAP_FAILED) throw std::bad_alloc();
      return {p, Free{bytes}};
    }
#endif
    std::unique_ptr<void, Free> p(std::calloc(1, bytes), Free{});
    if (!p) throw std::bad_alloc();
    return p;
  }

  std::unique_ptr<void, Free> memory_;
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace fasttoken
