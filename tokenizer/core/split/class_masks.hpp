// The classes of 64 bytes as bit masks, in three ways; kernels.cpp includes this once for each.
//
//   FASTTOKEN_KERNEL   the namespace: scalar, avx2 or avx512
//
//   masks_of() knows ASCII alone; add_others() then adds the characters beyond it, by their code points.

namespace fasttoken::FASTTOKEN_KERNEL {

#if FASTTOKEN_LEVEL == 2

struct AsciiClasses {
  __m512i low, high;
  explicit AsciiClasses(const ClassTable& t)
      : low(_mm512_loadu_si512(t.ascii.data())), high(_mm512_loadu_si512(t.ascii.data() + 64)) {}
};

static inline Leads leads_of(const char* p, const ClassTable& t) {
  __m512i bytes = _mm512_loadu_si512(p);
  __m512i kinds =
      _mm512_permutex2var_epi8(_mm512_loadu_si512(t.leads.data()), bytes, _mm512_loadu_si512(t.leads.data() + 64));
  uint64_t high = _mm512_movepi8_mask(bytes);
  auto with = [&](int bit) {
    return _mm512_mask_test_epi8_mask(high, kinds, _mm512_set1_epi8(static_cast<char>(bit)));
  };
  uint64_t from = _mm512_cmpge_epu8_mask(bytes, _mm512_set1_epi8(static_cast<char>(lead_from_byte)));
  uint64_t to = _mm512_cmplt_epu8_mask(bytes, _mm512_set1_epi8(static_cast<char>(lead_to_byte)));
  uint64_t three = with(lead_three) | (with(lead_from) & from >> 1) | (with(lead_to) & to >> 1);
  return {with(lead_two), three, three & with(lead_upper), three & with(lead_special)};
}

// Masks of neighbours within ASCII: whether they join, and the bytes that join the one before them. The first byte
// has no entry. 65 bytes can be read.
struct AsciiJoins {
  __m512i left[2], right[2];
  explicit AsciiJoins(const Joins& joins) {
    for (int half = 0; half < 2; ++half) {
      left[half] = _mm512_loadu_si512(joins.lefts().data() + 64 * half);
      right[half] = _mm512_loadu_si512(joins.rights().data() + 64 * half);
    }
  }
};
static inline uint64_t high_bytes(const char* p) { return _mm512_movepi8_mask(_mm512_loadu_si512(p)); }

static inline uint64_t joined_ascii(const char* p, const AsciiJoins& t) {
  const __m512i bytes = _mm512_loadu_si512(p), next = _mm512_loadu_si512(p + 1);
  const __m512i left = _mm512_maskz_permutex2var_epi8(~_mm512_movepi8_mask(bytes), t.left[0], bytes, t.left[1]);
  const __m512i right = _mm512_maskz_permutex2var_epi8(~_mm512_movepi8_mask(next), t.right[0], next, t.right[1]);
  return static_cast<uint64_t>(_mm512_test_epi8_mask(left, right)) << 1;
}

// The classes of characters whose last bytes are at p on: entries of a row of 64, by the lowest six bits.
using Classes = __m512i;
static inline Classes no_classes() { return _mm512_setzero_si512(); }
static inline void add_row(Classes& all, const char* p, const uint8_t* row, uint64_t where) {
  all = _mm512_mask_permutexvar_epi8(all, where, _mm512_loadu_si512(p), _mm512_loadu_si512(row));
}
// The bytes whose lowest six bits say a bit of the row that is set.
static inline uint64_t in_row(const char* p, uint64_t row) {
  const __m512i bytes = _mm512_loadu_si512(p), seven = _mm512_set1_epi8(7);
  const __m512i eight = _mm512_shuffle_epi8(_mm512_set1_epi64(static_cast<int64_t>(row)),
                                            _mm512_and_si512(_mm512_srli_epi16(bytes, 3), seven));
  const __m512i one = _mm512_shuffle_epi8(_mm512_set1_epi64(static_cast<int64_t>(0x8040201008040201u)),
                                          _mm512_and_si512(bytes, seven));
  return _mm512_test_epi8_mask(eight, one);
}
static inline uint64_t between(const char* p, uint8_t from, uint8_t to) {
  const __m512i above = _mm512_sub_epi8(_mm512_loadu_si512(p), _mm512_set1_epi8(static_cast<char>(from)));
  return _mm512_cmple_epu8_mask(above, _mm512_set1_epi8(static_cast<char>(to - from)));
}
static inline uint64_t in_class(const Classes& all, uint8_t bit) {
  return _mm512_test_epi8_mask(all, _mm512_set1_epi8(static_cast<char>(bit)));
}

static inline uint64_t mask_of(const char* p, char c) {
  return _mm512_cmpeq_epi8_mask(_mm512_loadu_si512(p), _mm512_set1_epi8(c));
}

static inline void masks_of(const char* p, const AsciiClasses& t, Masks& m) {
  __m512i bytes = _mm512_loadu_si512(p);
  m.high = _mm512_movepi8_mask(bytes);
  __m512i classes = _mm512_maskz_permutex2var_epi8(~m.high, t.low, bytes, t.high);
  auto with = [&](int bit) { return _mm512_test_epi8_mask(classes, _mm512_set1_epi8(static_cast<char>(bit))); };
  m.letter = with(class_letter);
  m.number = with(class_number);
  m.space = with(class_space);
  m.newline = with(class_newline);
  m.blank = with(class_blank);
  m.quote = with(class_quote);
  m.upper = with(class_upper);
}

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
    const __mmask8 there = static_cast<__mmask8>(_bzhi_u32(0xFF, static_cast<unsigned>(f.count - i)));
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

#elif FASTTOKEN_LEVEL == 1

// For each class a row by low half of the byte: the high halves (below 8) with which it is in the class.
struct AsciiClasses {
  __m256i row[7];
  explicit AsciiClasses(const ClassTable& t) {
    for (int bit = 0; bit < 7; ++bit) {
      alignas(32) uint8_t bytes[32] = {};
      for (unsigned c = 0; c < 128; ++c)
        if (t.ascii[c] >> bit & 1) bytes[c & 15] |= static_cast<uint8_t>(1u << (c >> 4));
      std::memcpy(bytes + 16, bytes, 16);
      row[bit] = _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes));
    }
  }
};

static inline void masks_of(const char* p, const AsciiClasses& t, Masks& m) {
  uint64_t* out[7] = {&m.letter, &m.number, &m.space, &m.newline, &m.blank, &m.quote, &m.upper};
  const __m256i half = _mm256_set1_epi8(15), zero = _mm256_setzero_si256();
  const __m256i powers = _mm256_setr_epi8(1, 2, 4, 8, 16, 32, 64, -128, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 32,
                                          64, -128, 0, 0, 0, 0, 0, 0, 0, 0);
  m.high = 0;
  for (int bit = 0; bit < 7; ++bit) *out[bit] = 0;
  for (int part = 0; part < 2; ++part) {
    __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + part * 32));
    m.high |= uint64_t{static_cast<uint32_t>(_mm256_movemask_epi8(bytes))} << (part * 32);
    __m256i low = _mm256_and_si256(bytes, half), high = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), half);
    __m256i power = _mm256_shuffle_epi8(powers, high);
    for (int bit = 0; bit < 7; ++bit) {
      __m256i in = _mm256_and_si256(_mm256_shuffle_epi8(t.row[bit], low), power);
      uint32_t outside = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(in, zero)));
      *out[bit] |= uint64_t{~outside} << (part * 32);
    }
  }
}

static inline Leads leads_of(const char* p, const ClassTable& t) {
  Leads out{0, 0, 0, 0};
  uint64_t from = 0, to = 0, upper = 0, special = 0, at_least = 0, below = 0;
  const __m256i half = _mm256_set1_epi8(15), zero = _mm256_setzero_si256();
  // The bits by low half, for each high half from 8 on.
  __m256i row[8];
  for (int i = 0; i < 8; ++i)
    row[i] = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(t.leads.data() + 16 * i)));
  for (int part = 0; part < 2; ++part) {
    __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + part * 32));
    __m256i low = _mm256_and_si256(bytes, half), high = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), half);
    __m256i kinds = zero;
    for (int i = 4; i < 7; ++i)  // C, D and E
      kinds = _mm256_or_si256(kinds,
                              _mm256_and_si256(_mm256_shuffle_epi8(row[i], low),
                                               _mm256_cmpeq_epi8(high, _mm256_set1_epi8(static_cast<char>(8 + i)))));
    auto with = [&](int bit) {
      __m256i in = _mm256_and_si256(kinds, _mm256_set1_epi8(static_cast<char>(bit)));
      return uint64_t{~static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(in, zero)))} << (part * 32);
    };
    out.two |= with(lead_two);
    out.three |= with(lead_three);
    from |= with(lead_from);
    to |= with(lead_to);
    upper |= with(lead_upper);
    special |= with(lead_special);
    auto reach = [&](uint8_t least) {
      __m256i reached = _mm256_max_epu8(bytes, _mm256_set1_epi8(static_cast<char>(least)));
      return uint64_t{static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(reached, bytes)))} << (part * 32);
    };
    at_least |= reach(lead_from_byte);
    below |= reach(lead_to_byte);
  }
  out.three |= (from & at_least >> 1) | (to & ~below >> 1);
  out.upper = out.three & upper;
  out.special = out.three & special;
  return out;
}

struct Classes {
  __m256i half[2];
};
static inline Classes no_classes() { return {{_mm256_setzero_si256(), _mm256_setzero_si256()}}; }
// Each bit of a mask as a byte of all ones.
static inline __m256i bytes_of(uint32_t mask) {
  const __m256i own = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
  const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(mask)),
                                             _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2,
                                                              2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3));
  return _mm256_cmpeq_epi8(_mm256_and_si256(spread, own), own);
}
static inline void add_row(Classes& all, const char* p, const uint8_t* row, uint64_t where) {
  for (int part = 0; part < 2; ++part) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + part * 32));
    const __m256i low = _mm256_and_si256(bytes, _mm256_set1_epi8(15)),
                  high = _mm256_and_si256(bytes, _mm256_set1_epi8(0x30));
    __m256i found = _mm256_setzero_si256();
    for (int i = 0; i < 4; ++i) {
      const __m256i sixteen =
          _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 16 * i)));
      found = _mm256_or_si256(found,
                              _mm256_and_si256(_mm256_shuffle_epi8(sixteen, low),
                                               _mm256_cmpeq_epi8(high, _mm256_set1_epi8(static_cast<char>(16 * i)))));
    }
    all.half[part] = _mm256_or_si256(all.half[part],
                                     _mm256_and_si256(found, bytes_of(static_cast<uint32_t>(where >> (part * 32)))));
  }
}
static inline uint64_t in_row(const char* p, uint64_t row) {
  const __m256i seven = _mm256_set1_epi8(7);
  uint64_t out = 0;
  for (int part = 0; part < 2; ++part) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + part * 32));
    const __m256i eight = _mm256_shuffle_epi8(_mm256_set1_epi64x(static_cast<int64_t>(row)),
                                              _mm256_and_si256(_mm256_srli_epi16(bytes, 3), seven));
    const __m256i one = _mm256_shuffle_epi8(_mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u)),
                                            _mm256_and_si256(bytes, seven));
    const __m256i in = _mm256_cmpeq_epi8(_mm256_and_si256(eight, one), one);
    out |= uint64_t{static_cast<uint32_t>(_mm256_movemask_epi8(in))} << (part * 32);
  }
  return out;
}
static inline uint64_t between(const char* p, uint8_t from, uint8_t to) {
  uint64_t out = 0;
  for (int part = 0; part < 2; ++part) {
    const __m256i above = _mm256_sub_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + part * 32)),
                                          _mm256_set1_epi8(static_cast<char>(from)));
    const __m256i in =
        _mm256_cmpeq_epi8(_mm256_min_epu8(above, _mm256_set1_epi8(static_cast<char>(to - from))), above);
    out |= uint64_t{static_cast<uint32_t>(_mm256_movemask_epi8(in))} << (part * 32);
  }
  return out;
}
static inline uint64_t in_class(const Classes& all, uint8_t bit) {
  uint64_t out = 0;
  for (int part = 0; part < 2; ++part) {
    const __m256i in = _mm256_and_si256(all.half[part], _mm256_set1_epi8(static_cast<char>(bit)));
    const __m256i outside = _mm256_cmpeq_epi8(in, _mm256_setzero_si256());
    out |= uint64_t{~static_cast<uint32_t>(_mm256_movemask_epi8(outside))} << (part * 32);
  }
  return out;
}

static inline uint64_t mask_of(const char* p, char c) {
  uint64_t out = 0;
  for (int part = 0; part < 2; ++part) {
    __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + part * 32));
    __m256i equal = _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(c));
    out |= uint64_t{static_cast<uint32_t>(_mm256_movemask_epi8(equal))} << (part * 32);
  }
  return out;
}

#define FASTTOKEN_WORDS_ONE_BY_ONE

#else

struct AsciiClasses {
  const ClassTable& table;
  explicit AsciiClasses(const ClassTable& t) : table(t) {}
};

static inline void masks_of(const char* p, const AsciiClasses& t, Masks& m) {
  m = {};
  for (int part = 0; part < 64; part += 8) {
    uint64_t classes = 0, high = 0;
    for (int i = 0; i < 8; ++i) {
      unsigned char b = static_cast<unsigned char>(p[part + i]);
      high |= uint64_t{b} >> 7 << i;
      classes |= uint64_t{b < 128 ? t.table.ascii[b] : uint8_t{0}} << (i * 8);
    }
    // Bit k of eight bytes, gathered into one byte.
    auto with = [&](int k) { return ((classes >> k & 0x0101010101010101u) * 0x0102040810204080u >> 56) << part; };
    m.high |= high << part;
    m.letter |= with(0);
    m.number |= with(1);
    m.space |= with(2);
    m.newline |= with(3);
    m.blank |= with(4);
    m.quote |= with(5);
    m.upper |= with(6);
  }
}

static inline Leads leads_of(const char*, const ClassTable&) { return {0, 0, 0, 0}; }

struct Classes {
  uint8_t of[64];
};
static inline Classes no_classes() { return {}; }
static inline void add_row(Classes& all, const char* p, const uint8_t* row, uint64_t where) {
  for (; where; where &= where - 1) {
    const int at = std::countr_zero(where);
    all.of[at] = row[p[at] & 63];
  }
}
static inline uint64_t in_row(const char* p, uint64_t row) {
  uint64_t out = 0;
  for (int i = 0; i < 64; ++i) out |= (row >> (p[i] & 63) & 1) << i;
  return out;
}
static inline uint64_t between(const char* p, uint8_t from, uint8_t to) {
  uint64_t out = 0;
  for (int i = 0; i < 64; ++i)
    out |= uint64_t{static_cast<uint8_t>(p[i]) >= from && static_cast<uint8_t>(p[i]) <= to} << i;
  return out;
}
static inline uint64_t in_class(const Classes& all, uint8_t bit) {
  uint64_t out = 0;
  for (int i = 0; i < 64; ++i) out |= uint64_t{(all.of[i] & bit) != 0} << i;
  return out;
}

static inline uint64_t mask_of(const char* p, char c) {
  uint64_t out = 0;
  for (int i = 0; i < 64; ++i) out |= uint64_t{p[i] == c} << i;
  return out;
}

#define FASTTOKEN_WORDS_ONE_BY_ONE

#endif

#ifdef FASTTOKEN_WORDS_ONE_BY_ONE
#undef FASTTOKEN_WORDS_ONE_BY_ONE

static inline void put_places(uint64_t mask, uint32_t from, uint32_t* out) {
  for (; mask; mask &= mask - 1) *out++ = from + static_cast<uint32_t>(std::countr_zero(mask));
}

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

static inline size_t not_found(const FoundWords& f, uint32_t* out) {
  size_t n = 0;
  for (size_t i = 0; i < f.count; ++i) {
    out[n] = static_cast<uint32_t>(i);
    n += f.ids[i] < 0;
  }
  return n;
}

#endif

#if FASTTOKEN_LEVEL < 2
struct AsciiJoins {
  const Joins& joins;
  explicit AsciiJoins(const Joins& j) : joins(j) {}
};
static inline uint64_t high_bytes(const char* p) {
  uint64_t out = 0;
  for (int i = 0; i < 64; ++i) out |= uint64_t{static_cast<unsigned char>(p[i]) >= 128} << i;
  return out;
}
static inline uint64_t joined_ascii(const char* p, const AsciiJoins& t) {
  uint64_t out = 0;
  auto known = [](char c) { return static_cast<unsigned char>(c) < 128; };
  for (int i = 1; i < 64; ++i) {
    const bool both = known(p[i - 1]) & known(p[i]);
    const unsigned char a = p[i - 1] & 127, b = p[i] & 127;
    out |= uint64_t{both && (t.joins.left(a) & t.joins.right(b))} << i;
  }
  return out;
}
#endif

// Which of 64 bytes belong to a word with the byte before them: the first begins a character. high: those beyond
// ASCII.
static inline uint64_t joined(const char* p, const Joins& joins, const AsciiJoins& ascii, uint64_t high) {
  uint64_t out = joined_ascii(p, ascii);
  uint32_t before = 0;
  size_t end = 64;  // of the character before
  while (high) {
    const size_t i = static_cast<size_t>(std::countr_zero(high));
    const char* to = p + i;
    const uint32_t c = utf8_next(to);
    if (i > 0) out |= uint64_t{joins.join(i == end ? before : static_cast<unsigned char>(p[i - 1]), c)} << i;
    end = static_cast<size_t>(to - p);
    out |= ((uint64_t{1} << (end - i - 1)) - 1) << i << 1;
    before = c;
    if (end >= 64) break;
    const unsigned char next = static_cast<unsigned char>(p[end]);
    if (next < 128) out |= uint64_t{joins.join(c, next)} << end;
    high = high >> end << end;
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
             if (rows[row]) found |= where & in_row(p + size - 1, rows[row]);
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
    Classes classes = no_classes();
    uint64_t of[5] = {};  // where characters of so many bytes begin
    each_row(p, left, [&](uint64_t where, unsigned size, uint32_t row) {
      add_row(classes, p + size - 1, t.row(row << 6), where);
      of[size] |= where;
    });
    leads |= left;
    const uint64_t wide = of[3] | of[4];
    const auto all = [&](uint8_t bit) {
      const uint64_t in = in_class(classes, bit);
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
