// Vectors of trivial things for one call's intermediate results. From 1 MB on they lie on huge pages where the
// system gives them for the asking: the memory of a long text is given back after its call, so that the next one
// touches fresh memory, and the system clears 2 MB at once in a tenth of the time of 512 pages.
//
//   ownership   memory of that size is mapped for one vector, and unmapped with it, independently of the heap
//   invariants  resize() does not clear new elements: they are written before they are read
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <type_traits>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace fasttoken {

namespace large_memory {

#if defined(__linux__) && defined(MADV_HUGEPAGE)
inline constexpr size_t page = size_t{2} << 20, least = page / 2;

constexpr size_t mapped_bytes(size_t bytes) { return (bytes + page - 1) / page * page; }

// Not cleared twice: mapped memory reads as zeros.
inline void* take(size_t bytes) {
  if (bytes < least) return ::operator new(bytes);
  size_t whole = mapped_bytes(bytes);
  void* mapped = mmap(nullptr, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  char* from = static_cast<char*>(mapped);
  size_t before = (page - reinterpret_cast<uintptr_t>(mapped) % page) % page;
  if (before) (void)munmap(from, before);
  (void)munmap(from + before + whole, page - before);
  (void)madvise(from + before, whole, MADV_HUGEPAGE);
  return from + before;
}
inline void give_back(void* p, size_t bytes) noexcept {
  if (bytes < least)
    ::operator delete(p);
  else
    (void)munmap(p, mapped_bytes(bytes));
}
#else
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

}  // namespace fasttoken
