// Vectors of trivial things for one call's intermediate results. From 1 MB on they lie on huge pages where the
// system gives them for the asking: the memory of a long text is given back after its call, so that the next one
// touches fresh memory, and the system clears 2 MB at once in less time than 512 pages.
//
//   ownership   memory of that size is mapped for one vector, and unmapped with it, independently of the heap
//   invariants  resize() does not clear new elements: they are written before they are read
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace fasttoken {

namespace large_memory {

#if defined(__linux__) && defined(MADV_HUGEPAGE)
inline constexpr size_t page = size_t{2} << 20, least = page / 2;

constexpr size_t mapped_bytes(size_t bytes) { return (bytes + page - 1) / page * page; }

// Memory of whole pages, which reads as zeros; of so many bytes the system is asked for huge ones.
inline void* map(size_t bytes, size_t huge) {
  size_t whole = mapped_bytes(bytes);
  void* mapped = mmap(nullptr, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  char* from = static_cast<char*>(mapped);
  size_t before = (page - reinterpret_cast<uintptr_t>(mapped) % page) % page;
  if (before) (void)munmap(from, before);
  (void)munmap(from + before + whole, page - before);
  if (huge) (void)madvise(from + before, huge, MADV_HUGEPAGE);
  return from + before;
}
inline void* take(size_t bytes) { return bytes < least ? ::operator new(bytes) : map(bytes, mapped_bytes(bytes)); }
inline void give_back(void* p, size_t bytes) noexcept {
  if (bytes < least)
    ::operator delete(p);
  else
    (void)munmap(p, mapped_bytes(bytes));
}
#else
inline constexpr size_t page = SIZE_MAX;
inline void* map(size_t, size_t) { throw std::bad_alloc(); }
inline void* take(size_t bytes) { return ::operator new(bytes); }
inline void give_back(void* p, size_t) noexcept { ::operator delete(p); }
#endif

}  // namespace large_memory

template <class T>
struct ScratchAllocator {
  using value_type = T;

  ScratchAllocator() = default;
  template <class U>
  ScratchAllocator(const ScratchAllocator<U>&) noexcept {}

  T* allocate(size_t n) {
    if (n > std::numeric_limits<size_t>::max() / 2 / sizeof(T)) throw std::bad_alloc();
    return static_cast<T*>(large_memory::take(n * sizeof(T)));
  }
  void deallocate(T* p, size_t n) noexcept { large_memory::give_back(p, n * sizeof(T)); }

  template <class U>
  void construct(U* p) noexcept {
    ::new (static_cast<void*>(p)) U;
  }
  template <class U>
  bool operator==(const ScratchAllocator<U>&) const noexcept {
    return true;
  }
};

template <class T>
  requires std::is_trivially_copyable_v<T>
using ScratchVector = std::vector<T, ScratchAllocator<T>>;

// Where ids are written: grows, is kept between calls, and gives back the memory of one long text.
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

// What a thread lends to one call at a time. The call may have other threads write it.
struct CallBuffers {
  IdBuffer ids;
  ScratchVector<char> utf8;  // of the text
  bool lent = false;
};

}  // namespace fasttoken
