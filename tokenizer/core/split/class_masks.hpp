// The classes of 64 bytes as bit masks; kernels.cpp includes this once for each set of instructions.
//
//   FASTTOKEN_KERNEL   the namespace: scalar, avx2 or avx512
//   Bytes              64 bytes, and the few things that are done with them in each set's own way

namespace fasttoken::FASTTOKEN_KERNEL {

#if FASTTOKEN_LEVEL == 2

using Bytes = __m512i;
static inline Bytes load(const void* p) { return _mm512_loadu_si512(p); }
static inline Bytes all_of(uint8_t value) { return _mm512_set1_epi8(static_cast<char>(value)); }
// 0xFF where the mask has a bit, else 0; the bytes where it has one.
static inline Bytes spread(uint64_t mask) { return _mm512_movm_epi8(mask); }
static inline Bytes only(uint64_t mask, Bytes a) { return _mm512_maskz_mov_epi8(mask, a); }
static inline Bytes united(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
// Entries of a table of 64, by the lowest six bits.
static inline Bytes look_up(Bytes table, Bytes at) { return _mm512_permutexvar_epi8(at, table); }
// Where the highest bit is set, where both share a bit, where a bit is set, where both are the same, where the first
// is not greater.
static inline uint64_t high(Bytes a) { return _mm512_movepi8_mask(a); }
static inline uint64_t common(Bytes a, Bytes b) { return _mm512_test_epi8_mask(a, b); }
static inline uint64_t with(Bytes a, uint8_t bit) { return common(a, all_of(bit)); }
static inline uint64_t equal(Bytes a, Bytes b) { return _mm512_cmpeq_epi8_mask(a, b); }
static inline uint64_t at_most(Bytes a, Bytes b) { return _mm512_cmple_epu8_mask(a, b); }

#elif FASTTOKEN_LEVEL == 1

struct Bytes {
  __m256i half[2];
};
static inline Bytes load(const void* p) {
  auto from = static_cast<const __m256i*>(p);
  return {{_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1)}};
}
static inline Bytes all_of(uint8_t value) {
  const __m256i all = _mm256_set1_epi8(static_cast<char>(value));
  return {{all, all}};
}
template <class F>
static inline Bytes each_half(F&& f) {
  return {{f(0), f(1)}};
}
static inline Bytes spread(uint64_t mask) {
  const __m256i own = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
  const __m256i places = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  return each_half([&](int i) {
    const __m256i bits = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(mask >> (i * 32))), places);
    return _mm256_cmpeq_epi8(_mm256_and_si256(bits, own), own);
  });
}
static inline Bytes united(Bytes a, Bytes b) {
  return each_half([&](int i) { return _mm256_or_si256(a.half[i], b.half[i]); });
}
static inline Bytes only(uint64_t mask, Bytes a) {
  const Bytes where = spread(mask);
  return each_half([&](int i) { return _mm256_and_si256(where.half[i], a.half[i]); });
}
// A shuffle reads a row of 16 by the lowest four bits; the bits above, moved to the highest place, choose a row.
static inline __m256i chosen(__m256i low, __m256i high, __m256i at, int up) {
  return _mm256_blendv_epi8(low, high, _mm256_slli_epi16(at, up));
}
static inline Bytes look_up(Bytes table, Bytes at) {
  return each_half([&](int i) {
    const __m256i in = _mm256_and_si256(at.half[i], _mm256_set1_epi8(63));
    const auto two_rows = [&](__m256i rows) {
      return chosen(_mm256_shuffle_epi8(_mm256_permute2x128_si256(rows, rows, 0x00), in),
                    _mm256_shuffle_epi8(_mm256_permute2x128_si256(rows, rows, 0x11), in), in, 3);
    };
    return chosen(two_rows(table.half[0]), two_rows(table.half[1]), in, 2);
  });
}
// The second where the byte of `at` has the bit 64.
static inline Bytes by_64(Bytes low, Bytes high, Bytes at) {
  return each_half([&](int i) { return chosen(low.half[i], high.half[i], at.half[i], 1); });
}
static inline uint64_t high(Bytes a) {
  auto half = [&](int i) { return uint64_t{static_cast<uint32_t>(_mm256_movemask_epi8(a.half[i]))}; };
  return half(0) | half(1) << 32;
}
static inline uint64_t equal(Bytes a, Bytes b) {
  return high(each_half([&](int i) { return _mm256_cmpeq_epi8(a.half[i], b.half[i]); }));
}
static inline uint64_t common(Bytes a, Bytes b) {
  return ~equal(each_half([&](int i) { return _mm256_and_si256(a.half[i], b.half[i]); }), all_of(0));
}
static inline uint64_t with(Bytes a, uint8_t bit) {
  return high(each_half([&](int i) { return _mm256_slli_epi16(a.half[i], std::countl_zero(bit)); }));
}
static inline uint64_t at_most(Bytes a, Bytes b) {
  return equal(each_half([&](int i) { return _mm256_min_epu8(a.half[i], b.half[i]); }), a);
}

#else

struct Bytes {
  uint8_t of[64];
};
template <class F>
static inline Bytes each_byte(F&& f) {
  Bytes out;
  for (int i = 0; i < 64; ++i) out.of[i] = static_cast<uint8_t>(f(i));
  return out;
}
static inline Bytes load(const void* p) {
  Bytes out;
  std::memcpy(&out, p, sizeof out);
  return out;
}
static inline Bytes all_of(uint8_t value) {
  return each_byte([&](int) { return value; });
}
static inline Bytes spread(uint64_t mask) {
  return each_byte([&](int i) { return mask >> i & 1 ? 0xFF : 0; });
}
static inline Bytes united(const Bytes& a, const Bytes& b) {
  return each_byte([&](int i) { return a.of[i] | b.of[i]; });
}
static inline Bytes only(uint64_t mask, const Bytes& a) {
  return each_byte([&](int i) { return mask >> i & 1 ? a.of[i] : 0; });
}
static inline Bytes look_up(const Bytes& table, const Bytes& at) {
  return each_byte([&](int i) { return table.of[at.of[i] & 63]; });
}
static inline Bytes by_64(const Bytes& low, const Bytes& high, const Bytes& at) {
  return each_byte([&](int i) { return at.of[i] & 64 ? high.of[i] : low.of[i]; });
}
static inline uint64_t high(const Bytes& a) {
  uint64_t out = 0, eight;
  for (int i = 0; i < 64; i += 8) {
    std::memcpy(&eight, a.of + i, 8);
    if constexpr (std::endian::native == std::endian::big) eight = __builtin_bswap64(eight);
    out |= ((eight >> 7 & 0x0101010101010101u) * 0x0102040810204080u >> 56) << i;
  }
  return out;
}
static inline uint64_t common(const Bytes& a, const Bytes& b) {
  return high(each_byte([&](int i) { return a.of[i] & b.of[i] ? 0x80 : 0; }));
}
static inline uint64_t with(const Bytes& a, uint8_t bit) { return common(a, all_of(bit)); }
static inline uint64_t equal(const Bytes& a, const Bytes& b) {
  return high(each_byte([&](int i) { return a.of[i] == b.of[i] ? 0x80 : 0; }));
}
static inline uint64_t at_most(const Bytes& a, const Bytes& b) {
  return high(each_byte([&](int i) { return a.of[i] <= b.of[i] ? 0x80 : 0; }));
}

#endif

#if FASTTOKEN_LEVEL == 2

// Where the bits of a mask are, counted from `from`; 16 are written at a time.
static inline void put_places(uint64_t mask, uint32_t from, uint32_t* out) {
  alignas(64) static constexpr auto counted = [] {
    std::array<uint8_t, 64> all{};
    for (uint8_t i = 0; i < 64; ++i) all[i] = i;
    return all;
  }();
  __m512i places = _mm512_maskz_compress_epi8(mask, _mm512_load_si512(counted.data()));
  const __m512i base = _mm512_set1_epi32(static_cast<int>(from));
  for (int left = std::popcount(mask); left > 0; left -= 16, out += 16) {
    _mm512_storeu_si512(out, _mm512_add_epi32(_mm512_cvtepu8_epi32(_mm512_castsi512_si128(places)), base));
    places = _mm512_alignr_epi64(places, places, 2);
  }
}

// The first and the second eight bytes of eight words.
static inline void read_words(const char* base, const uint32_t* at, __m512i& low, __m512i& high) {
  auto four = [&](size_t i) {
    auto one = [&](size_t k) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(base + at[i + k])); };
    return _mm512_inserti64x4(
        _mm512_castsi256_si512(_mm256_inserti128_si256(_mm256_castsi128_si256(one(0)), one(1), 1)),
        _mm256_inserti128_si256(_mm256_castsi128_si256(one(2)), one(3), 1), 1);
  };
  const __m512i first = four(0), second = four(4);
  low = _mm512_permutex2var_epi64(first, _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), second);
  high = _mm512_permutex2var_epi64(first, _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15), second);
}

static inline void place_words(FoundWords& f, const WordTable::Probe& table) {
  const __m512i one = _mm512_set1_epi64(1),
                used = _mm512_set1_epi64(static_cast<int64_t>(~uint64_t{0} << WordTable::spare_bits));
  const __m512i factors[] = {_mm512_set1_epi64(static_cast<int64_t>(WordTable::factors[0])),
                             _mm512_set1_epi64(static_cast<int64_t>(WordTable::factors[1])),
                             _mm512_set1_epi64(static_cast<int64_t>(WordTable::factors[2]))};
  const __m128i down = _mm_cvtsi32_si128(64 - table.bits), up = _mm_cvtsi32_si128(table.bits);
  const __m256i counted = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m512i wide_lines = _mm512_set1_epi64(int64_t{1} << table.bits);
  size_t narrow = 0, wide = 0;
  for (size_t i = f.count; i < f.count + 8; ++i)
    f.at[i + 1] = f.at[f.count];  // words of no bytes, which are not used
  for (size_t i = 0; i < f.count; i += 8) {
    const __m256i at = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(f.at + i)),
                  next = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(f.at + i + 1));
    const __m512i size = _mm512_cvtepu32_epi64(_mm256_sub_epi32(next, at)), bits = _mm512_slli_epi64(size, 3);
    // The instruction reads the lowest eight bits of a count.
    const auto left = static_cast<unsigned>(std::min<size_t>(f.count - i, 8));
    const __mmask8 there = static_cast<__mmask8>(_bzhi_u32(0xFF, left));
    const __mmask8 is_narrow = _mm512_mask_cmple_epu64_mask(there, size, _mm512_set1_epi64(7)),
                   is_wide = _mm512_mask_cmple_epu64_mask(there & ~is_narrow, size, _mm512_set1_epi64(15));
    __m512i low, behind;
    read_words(f.base, f.at + i, low, behind);
    // Shifts by 64 and more give 0.
    low = _mm512_and_si512(low, _mm512_sub_epi64(_mm512_sllv_epi64(one, bits), one));
    __m512i high = _mm512_slli_epi64(size, 56 + WordTable::spare_bits);
    behind = _mm512_maskz_and_epi64(
        is_wide, behind,
        _mm512_sub_epi64(_mm512_sllv_epi64(one, _mm512_sub_epi64(bits, _mm512_set1_epi64(64))), one));
    high = _mm512_or_si512(high, _mm512_slli_epi64(behind, WordTable::spare_bits));
    __m512i lows = _mm512_mullo_epi64(low, factors[0]);
    lows = _mm512_and_si512(_mm512_xor_si512(lows, _mm512_srli_epi64(lows, 32)), used);
    __m512i x = _mm512_mask_mov_epi64(_mm512_slli_epi64(low, WordTable::spare_bits), is_wide, lows);
    x = _mm512_mullo_epi64(_mm512_xor_si512(x, high), factors[1]);
    x = _mm512_xor_si512(x, _mm512_and_si512(_mm512_srli_epi64(x, 32), used));
    x = _mm512_mullo_epi64(x, factors[2]);
    _mm512_storeu_si512(f.low + i, low);
    _mm512_storeu_si512(f.rest + i, _mm512_sll_epi64(x, up));
    __m512i lines = _mm512_srl_epi64(x, down);
    lines = _mm512_mask_or_epi64(lines, is_wide, lines, wide_lines);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(f.line + i), _mm512_cvtepi64_epi32(lines));
    for (size_t k = 0; k < 8; ++k) table.fetch(f.line[i + k]);
    const __m256i numbers = _mm256_add_epi32(counted, _mm256_set1_epi32(static_cast<int>(i)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(f.narrow + narrow),
                        _mm256_maskz_compress_epi32(is_narrow, numbers));
    narrow += static_cast<size_t>(std::popcount(is_narrow));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(f.wide + wide), _mm256_maskz_compress_epi32(is_wide, numbers));
    wide += static_cast<size_t>(std::popcount(is_wide));
  }
  f.narrow_count = narrow;
  f.wide_count = wide;
}

static inline void find_words(FoundWords& f, const WordTable::Probe& table) {
  for (size_t i = 0; i < f.count; i += 16) _mm512_storeu_si512(f.ids + i, _mm512_set1_epi32(-1));
  const int64_t ids = (int64_t{1} << table.id_bits()) - 1;
  const __m512i differ = _mm512_set1_epi64(ids);
  const __m128i id = _mm_set1_epi64x(ids), one = _mm_set1_epi64x(1);
  const WordTable::Line* const lines = table.lines;
  // The id of the first entry that is the same, -1 if there is none or it is empty: no branch, since one word in ten
  // is not found.
  auto put = [&](size_t i, __m512i line, __mmask8 same) {
    __m128i entry = _mm512_castsi512_si128(_mm512_maskz_compress_epi64(same, line));
    f.ids[i] = _mm_cvtsi128_si32(_mm_sub_epi64(_mm_and_si128(entry, id), one));
  };
  for (size_t k = 0; k < f.narrow_count; ++k) {
    const size_t i = f.narrow[k];
    const __m512i line = _mm512_load_si512(lines + f.line[i]),
                  said = _mm512_set1_epi64(static_cast<int64_t>(f.rest[i]));
    put(i, line, _mm512_cmple_epu64_mask(_mm512_xor_si512(line, said), differ));
  }
  const __m512i differ_wide = _mm512_maskz_mov_epi64(0xF0, differ);
  for (size_t k = 0; k < f.wide_count; ++k) {
    const size_t i = f.wide[k];
    const __m512i line = _mm512_load_si512(lines + f.line[i]);
    const __m512i said = _mm512_mask_set1_epi64(_mm512_set1_epi64(static_cast<int64_t>(f.low[i])), 0xF0,
                                                static_cast<int64_t>(f.rest[i]));
    const __mmask8 same = _mm512_cmple_epu64_mask(_mm512_xor_si512(line, said), differ_wide);
    put(i, line, _kand_mask8(same, _kshiftli_mask8(same, 4)));
  }
}

// Which ids are -1, into out; how many.
static inline size_t not_found(const FoundWords& f, uint32_t* out) {
  size_t n = 0;
  for (size_t i = 0; i < f.count; i += 16) {
    uint32_t mask = _mm512_movepi32_mask(_mm512_loadu_si512(f.ids + i));
    if (f.count - i < 16) mask = _bzhi_u32(mask, static_cast<unsigned>(f.count - i));
    for (; mask; mask &= mask - 1)
      out[n++] = static_cast<uint32_t>(i) + static_cast<uint32_t>(std::countr_zero(mask));
  }
  return n;
}

#else

static inline void put_places(uint64_t mask, uint32_t from, uint32_t* out) {
  constexpr size_t run = 8;  // no branch asks for less: most blocks of prose have one to two runs
  do
    for (size_t i = 0; i < run; ++i, mask &= mask - 1) *out++ = from + static_cast<uint32_t>(std::countr_zero(mask));
  while (mask);
}

#if FASTTOKEN_LEVEL == 1

// Here as with AVX-512, no branch asks for the length of a word, or for the entry that has it: in text that was not
// seen before it would be guessed wrong once a word.
static inline __m256i all_four(uint64_t value) { return _mm256_set1_epi64x(static_cast<int64_t>(value)); }
static inline __m256i product(__m256i a, uint64_t factor) {
  const __m256i by = all_four(factor), crossed = _mm256_mullo_epi32(a, _mm256_shuffle_epi32(by, 0xB1)),
                upper = _mm256_add_epi32(_mm256_slli_epi64(crossed, 32), crossed);
  return _mm256_add_epi64(_mm256_mul_epu32(a, by), _mm256_blend_epi32(_mm256_setzero_si256(), upper, 0xAA));
}
// So many of the lowest bits; all of them if the count is not 0 to 63.
static inline __m256i lowest(__m256i of, __m256i count) {
  const __m256i one = all_four(1);
  return _mm256_and_si256(of, _mm256_sub_epi64(_mm256_sllv_epi64(one, count), one));
}

static inline void place_words(FoundWords& f, const WordTable::Probe& table) {
  const __m256i used = all_four(~uint64_t{0} << WordTable::spare_bits),
                wide_lines = all_four(uint64_t{1} << table.bits);
  const __m128i down = _mm_cvtsi32_si128(64 - table.bits), up = _mm_cvtsi32_si128(table.bits);
  for (size_t i = f.count; i < f.count + 4; ++i)
    f.at[i + 1] = f.at[f.count];  // words of no bytes, which are not used
  for (size_t i = 0; i < f.count; i += 4) {
    const auto* const at = reinterpret_cast<const __m128i*>(f.at + i);
    const auto* const next = reinterpret_cast<const __m128i*>(f.at + i + 1);
    const __m256i size = _mm256_cvtepu32_epi64(_mm_sub_epi32(_mm_loadu_si128(next), _mm_loadu_si128(at))),
                  bits = _mm256_slli_epi64(size, 3), wide = _mm256_cmpgt_epi64(size, all_four(7)),
                  longer = _mm256_cmpgt_epi64(size, all_four(WordTable::longest));
    const auto two = [&](size_t k) {  // words, k and the next but one
      const auto one = [&](size_t n) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(f.base + f.at[i + n]));
      };
      return _mm256_inserti128_si256(_mm256_castsi128_si256(one(k)), one(k + 2), 1);
    };
    const __m256i even = two(0), odd = two(1);
    const __m256i low = lowest(_mm256_unpacklo_epi64(even, odd), bits),
                  behind = lowest(_mm256_unpackhi_epi64(even, odd), _mm256_sub_epi64(bits, all_four(64)));
    const __m256i high = _mm256_or_si256(_mm256_slli_epi64(size, 56 + WordTable::spare_bits),
                                         _mm256_slli_epi64(_mm256_and_si256(behind, wide), WordTable::spare_bits));
    __m256i lows = product(low, WordTable::factors[0]);
    lows = _mm256_and_si256(_mm256_xor_si256(lows, _mm256_srli_epi64(lows, 32)), used);
    __m256i x = _mm256_blendv_epi8(_mm256_slli_epi64(low, WordTable::spare_bits), lows, wide);
    x = product(_mm256_xor_si256(x, high), WordTable::factors[1]);
    x = product(_mm256_xor_si256(x, _mm256_and_si256(_mm256_srli_epi64(x, 32), used)), WordTable::factors[2]);
    // Of a longer word, what no entry has.
    const __m256i rest = _mm256_or_si256(_mm256_sll_epi64(x, up), longer);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(f.rest + i), rest);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(f.low + i), _mm256_blendv_epi8(rest, low, wide));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(f.is_wide + i), wide);
    const __m256i lines = _mm256_or_si256(_mm256_srl_epi64(x, down), _mm256_and_si256(wide, wide_lines)),
                  packed = _mm256_permutevar8x32_epi32(lines, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(f.line + i), _mm256_castsi256_si128(packed));
    for (size_t k = 0; k < 4; ++k) table.fetch(f.line[i + k]);
  }
}

static inline void find_words(FoundWords& f, const WordTable::Probe& table) {
  const int64_t ids = (int64_t{1} << table.id_bits()) - 1;
  const WordTable::Line* const lines = table.lines;
  const __m256i own = _mm256_set1_epi64x(~ids);
  for (size_t i = 0; i < f.count; ++i) {
    const auto* const line = reinterpret_cast<const __m256i*>(lines + f.line[i]);
    const __m256i first = _mm256_load_si256(line), second = _mm256_load_si256(line + 1);
    // Of wide words, the first half of a line has the bytes, the second the entries.
    const __m256i wide = all_four(f.is_wide[i]);
    const __m256i same = _mm256_cmpeq_epi64(_mm256_and_si256(first, _mm256_or_si256(own, wide)), all_four(f.low[i]));
    __m256i entries =
        _mm256_and_si256(_mm256_cmpeq_epi64(_mm256_and_si256(second, own), all_four(f.rest[i])), second);
    entries = _mm256_blendv_epi8(_mm256_or_si256(entries, _mm256_and_si256(same, first)),
                                 _mm256_and_si256(entries, same), wide);
    const __m128i two = _mm_or_si128(_mm256_castsi256_si128(entries), _mm256_extracti128_si256(entries, 1));
    const int64_t entry = _mm_cvtsi128_si64(_mm_or_si128(two, _mm_unpackhi_epi64(two, two)));
    f.ids[i] = static_cast<int32_t>((entry & ids) - 1);
  }
}

#else

static inline void place_words(FoundWords& f, const WordTable::Probe& table) {
  for (size_t i = 0; i < f.count; ++i) {
    // Of a longer word this is not used.
    WordKey key = WordKey::of_readable(f.base + f.at[i], std::min(f.size(i), WordTable::longest));
    f.low[i] = key.low;
    const uint64_t mixed = WordTable::mixed(key);
    f.rest[i] = mixed << table.bits;
    f.line[i] = table.line(mixed, key.wide());
    table.fetch(f.line[i]);
  }
}

static inline void find_words(FoundWords& f, const WordTable::Probe& table) {
  for (size_t i = 0; i < f.count; ++i) {
    const size_t size = f.size(i);
    f.ids[i] = -1;
    if (size > WordTable::longest) continue;
    f.ids[i] = static_cast<int32_t>(table.find_in({f.low[i], f.rest[i], f.line[i], size > 7}));
  }
}

#endif

static inline size_t not_found(const FoundWords& f, uint32_t* out) {
  size_t n = 0;
  for (size_t i = 0; i < f.count; ++i) {
    out[n] = static_cast<uint32_t>(i);
    n += f.ids[i] < 0;
  }
  return n;
}

#endif

// Entries of a table of 128, by the lowest seven bits.
[[gnu::always_inline]] static inline Bytes of_table(const std::array<uint8_t, 128>& table, Bytes at) {
#if FASTTOKEN_LEVEL == 2
  return _mm512_permutex2var_epi8(load(table.data()), at, load(table.data() + 64));
#else
  return by_64(look_up(load(table.data()), at), look_up(load(table.data() + 64), at), at);
#endif
}
static inline uint64_t mask_of(const char* p, char c) { return equal(load(p), all_of(static_cast<uint8_t>(c))); }
static inline uint64_t between(const char* p, uint8_t from, uint8_t to) {
  return at_most(all_of(from), load(p)) & at_most(load(p), all_of(to));
}

// Of ASCII.
[[gnu::always_inline]] static inline void masks_of(const char* p, const ClassTable& t, Masks& m) {
  const Bytes bytes = load(p);
  m.high = high(bytes);
  const Bytes classes = only(~m.high, of_table(t.ascii, bytes));
  m.letter = with(classes, class_letter);
  m.number = with(classes, class_number);
  m.space = with(classes, class_space);
  m.newline = with(classes, class_newline);
  m.blank = with(classes, class_blank);
  m.quote = with(classes, class_quote);
  m.upper = with(classes, class_upper);
}

static inline Leads leads_of(const char* p, const ClassTable& t) {
  const Bytes bytes = load(p), kinds = only(high(bytes), of_table(t.leads, bytes));
  const uint64_t from = at_most(all_of(lead_from_byte), bytes), to = ~at_most(all_of(lead_to_byte), bytes);
  const uint64_t three =
      with(kinds, lead_three) | (with(kinds, lead_from) & from >> 1) | (with(kinds, lead_to) & to >> 1);
  return {with(kinds, lead_two), three, three & with(kinds, lead_upper), three & with(kinds, lead_special)};
}

// Which bytes of ASCII join the one before them, which is ASCII too. The first has no entry. 65 bytes can be read.
static inline uint64_t joined_ascii(const char* p, const Joins& joins) {
  const Bytes bytes = load(p), next = load(p + 1);
  const uint64_t both = common(of_table(joins.lefts(), bytes), of_table(joins.rights(), next));
  return (both & ~high(bytes) & ~high(next)) << 1;
}

// Which of 64 bytes belong to a word with the byte before them: the first begins a character. beyond: those beyond
// ASCII.
static inline uint64_t joined(const char* p, const Joins& joins, uint64_t beyond) {
  uint64_t out = joined_ascii(p, joins);
  uint32_t before = 0;
  size_t end = 64;  // of the character before
  while (beyond) {
    const size_t i = static_cast<size_t>(std::countr_zero(beyond));
    const char* to = p + i;
    const uint32_t c = utf8_next(to);
    if (i > 0) out |= uint64_t{joins.join(i == end ? before : static_cast<unsigned char>(p[i - 1]), c)} << i;
    end = static_cast<size_t>(to - p);
    out |= ((uint64_t{1} << (end - i - 1)) - 1) << i << 1;
    before = c;
    if (end >= 64) break;
    const unsigned char next = static_cast<unsigned char>(p[end]);
    if (next < 128) out |= uint64_t{joins.join(c, next)} << end;
    beyond = beyond >> end << end;
  }
  return out;
}

// Calls same(where, size, row) for the characters that begin at the set bits, of so many bytes: those that agree in
// all bytes but the last together, of which a text in one script has two or three kinds. 67 bytes can be read.
template <class F>
static inline void each_row(const char* p, uint64_t leads, F&& same) {
  while (leads) {
    const char* const at = p + std::countr_zero(leads);
    const unsigned size = utf8_length(static_cast<unsigned char>(*at));
    uint64_t where = leads;
    for (unsigned i = 0; i + 1 < size; ++i) where &= mask_of(p + i, at[i]);
    leads &= ~where;
    same(where, size, utf8_row(at));
  }
}

// As DirtyOf. U+4000 to U+9FFF and U+B000 to U+CFFF have none.
static inline uint64_t dirty_of(const char* p, const uint64_t* rows) {
  const uint64_t leads = between(p, 0xCC, 0xFF);
  if (!leads) return 0;
  uint64_t found = between(p, 0xF0, 0xFF);
  each_row(p, leads & ~(found | between(p, 0xE4, 0xE9) | between(p, 0xEB, 0xEC)),
           [&](uint64_t where, unsigned size, uint32_t row) {
             if (rows[row]) found |= where & high(look_up(spread(rows[row]), load(p + size - 1)));
           });
  return found;
}

// The characters beyond ASCII that begin in these 64 bytes; the last may end behind them.
template <bool cased>
static inline void add_others(const char* p, const ClassTable& t, uint64_t valid, Masks& m) {
  const Leads sure = leads_of(p, t);
  uint64_t leads = (sure.two | sure.three) & valid;
  const uint64_t known = leads | leads << 1 | (sure.three & valid) << 2,
                 upper = sure.upper | sure.upper << 1 | sure.upper << 2;
  m.letter |= known & ~upper & valid;
  m.upper |= known & upper & valid;
  m.special |= (sure.special | sure.special << 1 | sure.special << 2) & known & valid;
  if (const uint64_t left = m.high & valid & ~known & between(p, 0xC0, 0xFF)) {
    Bytes classes = all_of(0);
    uint64_t of[5] = {};  // where characters of so many bytes begin
    each_row(p, left, [&](uint64_t where, unsigned size, uint32_t row) {
      classes = united(classes, only(where, look_up(load(t.row(row << 6)), load(p + size - 1))));
      of[size] |= where;
    });
    leads |= left;
    const uint64_t wide = of[3] | of[4];
    const auto all = [&](uint8_t bit) {
      const uint64_t in = with(classes, bit);
      return in | in << 1 | (in & wide) << 2 | (in & of[4]) << 3;
    };
    m.letter |= all(class_letter);
    m.number |= all(class_number);
    m.space |= all(class_space);
    if constexpr (cased) {
      m.upper |= all(class_upper);
      m.special |= all(class_special);
    }
  }
  m.inside = m.high & valid & ~leads;
}

}  // namespace fasttoken::FASTTOKEN_KERNEL
