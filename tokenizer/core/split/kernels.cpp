// The kernels of word_kernel.hpp for each set of instructions, and the one for this machine.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#include "split/words.hpp"
#include "text/normalizers.hpp"

namespace fasttoken {

// One bit for each of 64 bytes; a byte beyond ASCII has the class of its character. inside: not its first.
struct Masks {
  uint64_t letter, number, space, newline, blank, quote, upper, special, high, inside;

  // Of bytes that are no longer the text's nothing is said; before characters beyond ASCII are added.
  void only(uint64_t valid) {
    letter &= valid, number &= valid, space &= valid, newline &= valid, blank &= valid, quote &= valid,
        upper &= valid;
  }
};

// Where characters of two and of three bytes begin that are letters, as their first byte or two say; upper: those of
// three that are not letters but class_upper; special: those that are class_special too.
struct Leads {
  uint64_t two, three, upper, special;
};

// Words found one behind the other, which are looked up many at a time: the lines of the tables are on their way
// before they are needed. The values of a word are at its number; 16 may be written at a time.
struct FoundWords {
  // To look up together; words beyond ASCII have more to look up each. A block has at most 64.
  static constexpr size_t enough = 512, enough_wide = 96, most = enough + 64;

  const char* base;  // the origin of places; 16 bytes can be read from where a word begins
  size_t count = 0;
  uint32_t at[most + 16];                    // where each begins, and where the last ends
  uint64_t low[most + 16], rest[most + 16];  // as WordTable has them; low only of words of more than seven bytes
  uint32_t line[most + 16];
  int32_t ids[most + 16];                       // -1: not in its first line
  uint32_t narrow[most + 16], wide[most + 16];  // the numbers of the words of at most 7, of at most 15 bytes
  size_t narrow_count, wide_count;
  uint64_t is_wide[most + 16];  // all ones or 0: with AVX2 in the place of these numbers
  // Of those that are added tokens, the numbers and the ids.
  size_t stop_count = 0;
  uint32_t stop_at[most];
  int32_t stop_ids[most];

  void add_stop(uint32_t where, int32_t id) {
    stop_at[stop_count] = static_cast<uint32_t>(count);
    stop_ids[stop_count++] = id;
    at[count++] = where;
  }
  void put_stops() {
    for (size_t i = 0; i < stop_count; ++i) ids[stop_at[i]] = stop_ids[i];
    stop_count = 0;
  }
  size_t size(size_t i) const { return at[i + 1] - at[i]; }
};

// What a set of instructions has.
struct Kernels {
  CutWords cut;
  DirtyOf dirty;
  MergeWords merge;
};

}  // namespace fasttoken

#define FASTTOKEN_KERNEL scalar
#define FASTTOKEN_LEVEL 0
#include "split/word_kernel.hpp"

#ifdef FASTTOKEN_X86
#include <immintrin.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,lzcnt,popcnt")
#endif
#define FASTTOKEN_KERNEL avx2
#define FASTTOKEN_LEVEL 1
#include "split/word_kernel.hpp"
#ifdef __clang__
#pragma clang attribute pop
#pragma clang attribute push(                                                                                   \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi,bmi2,lzcnt,popcnt"))), \
    apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi,bmi2,lzcnt,popcnt")
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // in the headers of the intrinsics (GCC bug 105593)
#endif
#define FASTTOKEN_KERNEL avx512
#define FASTTOKEN_LEVEL 2
#include "split/word_kernel.hpp"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif  // FASTTOKEN_X86

namespace fasttoken {

static const Kernels& kernels(Isa isa) {
#ifdef FASTTOKEN_X86
  if (isa == Isa::avx512) return avx512::kernels;
  if (isa == Isa::avx2) return avx2::kernels;
#endif
  (void)isa;
  return scalar::kernels;
}
CutWords cutter(Isa isa) { return kernels(isa).cut; }
DirtyOf dirty_finder(Isa isa) { return kernels(isa).dirty; }
MergeWords batch_merger(Isa isa) { return kernels(isa).merge; }

}  // namespace fasttoken
