#include <algorithm>
#include <bit>

#include "memory/isa.hpp"
#include "text/utf8.hpp"

#ifdef FASTTOKEN_X86
#include <immintrin.h>

#ifdef __clang__
#pragma clang attribute push(                                                                          \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,bmi,bmi2,lzcnt,popcnt"))), \
    apply_to = function)
#else
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // in the headers of the intrinsics (GCC bug 105593)
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,bmi,bmi2,lzcnt,popcnt")
#endif

namespace fasttoken {

namespace {

// The bytes of which the mask has a bit; past them.
inline char* put_bytes(__m512i bytes, uint64_t mask, char* out) {
  _mm512_storeu_si512(out, _mm512_maskz_compress_epi8(mask, bytes));
  return out + std::popcount(mask);
}

// In each of 16 places.
inline __m512i all(uint32_t value) { return _mm512_set1_epi32(static_cast<int>(value)); }
inline __m512i low(__m512i byte) { return _mm512_and_si512(byte, all(0xFF)); }

template <class Character>
size_t transcode(const Character* p, size_t n, char* const begin) {
  char* out = begin;
  for (size_t i = 0; i < n;) {
    const size_t left = n - i;
    // 16 of them, each in 32 bits: its last byte in the highest.
    const uint16_t there =
        static_cast<uint16_t>(_bzhi_u32(0xFFFF, static_cast<unsigned>(std::min<size_t>(left, 16))));
    __m512i c;
    if constexpr (sizeof(Character) == 1)
      c = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(there, p + i));
    else if constexpr (sizeof(Character) == 2)
      c = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, p + i));
    else
      c = _mm512_maskz_loadu_epi32(there, p + i);
    if (_mm512_cmpeq_epi32_mask(_mm512_and_si512(c, all(0xFFFFF800)), all(0xD800))) return not_transcoded;
    const __mmask16 two = _mm512_cmpge_epu32_mask(c, all(0x80)), three = _mm512_cmpge_epu32_mask(c, all(0x800)),
                    four = _mm512_cmpge_epu32_mask(c, all(0x10000));
    if (!two) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(c));
      out += std::min<size_t>(left, 16);
      i += 16;
      continue;
    }
    // The class of a byte with others before it, and as the first one.
    const __m512i last = _mm512_mask_or_epi32(c, two, _mm512_and_si512(c, all(0x3F)), all(0x80));
    const __m512i shifted6 = _mm512_srli_epi32(c, 6), shifted12 = _mm512_srli_epi32(c, 12);
    const __m512i third = _mm512_mask_or_epi32(_mm512_or_si512(shifted6, all(0xC0)), three,
                                               _mm512_and_si512(shifted6, all(0x3F)), all(0x80));
    const __m512i second = _mm512_mask_or_epi32(_mm512_or_si512(shifted12, all(0xE0)), four,
                                                _mm512_and_si512(shifted12, all(0x3F)), all(0x80));
    const __m512i first = _mm512_or_si512(_mm512_srli_epi32(c, 18), all(0xF0));
    const __m512i bytes =
        _mm512_or_si512(_mm512_or_si512(first, _mm512_slli_epi32(low(second), 8)),
                        _mm512_or_si512(_mm512_slli_epi32(low(third), 16), _mm512_slli_epi32(last, 24)));
    out = put_bytes(bytes,
                    _pdep_u64(there, 0x8888888888888888u) | _pdep_u64(two, 0x4444444444444444u) |
                        _pdep_u64(three, 0x2222222222222222u) | _pdep_u64(four, 0x1111111111111111u),
                    out);
    i += 16;
  }
  return static_cast<size_t>(out - begin);
}

// Here, where these instructions may be used.
template size_t transcode(const uint8_t*, size_t, char*);
template size_t transcode(const uint16_t*, size_t, char*);
template size_t transcode(const uint32_t*, size_t, char*);

}  // namespace

}  // namespace fasttoken

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace fasttoken {

size_t utf8_of(const void* characters, size_t n, int width, char* out) {
  static const bool quick = best_isa() == Isa::avx512;
  if (!quick) return not_transcoded;
  if (width == 1) return transcode(static_cast<const uint8_t*>(characters), n, out);
  if (width == 2) return transcode(static_cast<const uint16_t*>(characters), n, out);
  return transcode(static_cast<const uint32_t*>(characters), n, out);
}

}  // namespace fasttoken

#else

namespace fasttoken {

size_t utf8_of(const void*, size_t, int, char*) { return not_transcoded; }

}  // namespace fasttoken

#endif
