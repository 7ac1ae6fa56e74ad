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
  return {with(lead_two), three, three & with(lead_upper)};
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

static inline WordKey key_of(const char* p, size_t n) {
  __m128i bytes = _mm_maskz_loadu_epi8(static_cast<__mmask16>(_bzhi_u32(0xFFFF, static_cast<unsigned>(n))), p);
  return {static_cast<uint64_t>(_mm_cvtsi128_si64(bytes)),
          static_cast<uint64_t>(_mm_extract_epi64(bytes, 1)) | static_cast<uint64_t>(n) << 56};
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
  Leads out{0, 0, 0};
  uint64_t from = 0, to = 0, upper = 0, at_least = 0, below = 0;
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
    auto reach = [&](uint8_t least) {
      __m256i reached = _mm256_max_epu8(bytes, _mm256_set1_epi8(static_cast<char>(least)));
      return uint64_t{static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(reached, bytes)))} << (part * 32);
    };
    at_least |= reach(lead_from_byte);
    below |= reach(lead_to_byte);
  }
  out.three |= (from & at_least >> 1) | (to & ~below >> 1);
  out.upper = out.three & upper;
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

static inline WordKey key_of(const char* p, size_t n) { return WordKey::of_readable(p, n); }

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

static inline Leads leads_of(const char*, const ClassTable&) { return {0, 0, 0}; }

static inline uint64_t mask_of(const char* p, char c) {
  uint64_t out = 0;
  for (int i = 0; i < 64; ++i) out |= uint64_t{p[i] == c} << i;
  return out;
}

static inline WordKey key_of(const char* p, size_t n) { return WordKey::of_readable(p, n); }

#endif

// The characters beyond ASCII that begin in these 64 bytes; the last may end behind them.
static inline void add_others(const char* p, const ClassTable& t, uint64_t valid, Masks& m) {
  const Leads sure = leads_of(p, t);
  uint64_t leads = (sure.two | sure.three) & valid;
  uint64_t known = leads | leads << 1 | (sure.three & valid) << 2,
           upper = sure.upper | sure.upper << 1 | sure.upper << 2;
  m.letter |= known & ~upper & valid;
  m.upper |= known & upper & valid;
  uint64_t left = m.high & valid & ~known;
  while (left) {
    unsigned at = static_cast<unsigned>(std::countr_zero(left));
    const char* next = p + at;
    uint8_t c = t.of(utf8_next(next));
    uint64_t bytes = ((uint64_t{1} << (next - p - at)) - 1) << at;
    left &= ~bytes;
    leads |= uint64_t{1} << at;
    auto with = [&](uint8_t bit) { return c & bit ? bytes : 0; };
    m.letter |= with(class_letter);
    m.number |= with(class_number);
    m.space |= with(class_space);
    m.upper |= with(class_upper);
    m.special |= with(class_special);
  }
  m.inside = m.high & valid & ~leads;
}

}  // namespace fasttoken::FASTTOKEN_KERNEL
