// Exact int8 sums by AVX2. See body_packed.hpp.

inline Vec fused(Vec a, Vec b, Vec c) { return fma(a, b, c); }
// The instruction: GCC 12 moves sums of a loop that is spelled out from register to register, and some to memory.
inline Vec summed(Vec sum, Vec a, Vec b) {
  asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
  return sum;
}
inline void bytes(Vec v, uint32_t* to) {
  const __m256i lowest = _mm256_shuffle_epi8(_mm256_castps_si256(v), _mm256_set1_epi32(0x0C080400));
  to[0] = static_cast<uint32_t>(_mm256_extract_epi32(lowest, 0));
  to[1] = static_cast<uint32_t>(_mm256_extract_epi32(lowest, 4));
}
inline Vec halves(const uint32_t* words) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(words)));
}
inline Vec of_bytes(const int8_t* bytes) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes))));
}
template <bool kSix>
inline void open_halves(const uint32_t* words, const uint32_t* two, int at, uint32_t* low, uint32_t* high) {
  const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words)), half = _mm256_set1_epi8(15);
  __m256i lower = _mm256_and_si256(both, half), upper = _mm256_and_si256(_mm256_srli_epi32(both, 4), half);
  if constexpr (kSix) {
    const __m256i bits = _mm256_srli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(two)), at);
    const __m256i place = _mm256_set1_epi8(48);
    lower = _mm256_or_si256(lower, _mm256_and_si256(_mm256_slli_epi32(bits, 4), place));
    upper = _mm256_or_si256(upper, _mm256_and_si256(bits, place));
  }
  _mm256_store_si256(reinterpret_cast<__m256i*>(low), lower);
  _mm256_store_si256(reinterpret_cast<__m256i*>(high), upper);
}
inline Vec of_pairs(const uint32_t* words, int part) {
  const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
  // A shuffle does not take a unit that multiplies, as a shift does.
  const __m256i up = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0D0C'8080'0908'8080, 0x0504'8080'0100'8080));
  return _mm256_castsi256_ps(part == 0 ? _mm256_shuffle_epi8(pairs, up)
                                       : _mm256_and_si256(pairs, _mm256_set1_epi32(-65536)));
}
// Twelve vectors of sums, two of weights and an input.
constexpr bool kPairSums = true;
constexpr int kFloatRows = 6, kFloatWide = 1, kFloatWords = 384, kFloatSteps = 4;

// Four rows by 16 outputs: eight vectors of sums, two of weights, each with its sizes, an input and what a step
// makes. The product of bytes takes unsigned by signed ones: the sizes of weights by the integers of a row with the
// weights' signs. Two of 128 * 127 at most fit in 16 bits. A weight's byte, which is 128 too large, becomes signed by
// its highest bit, so that sums begin at 0.
struct Int8Dot {
  static constexpr Packing kPacking = Packing::int8;
  static constexpr int kRows = 4, kWide = 1, kFewRows = 3;
  struct Sums {
    __m256i eights[2];
  };
  struct Weight {
    __m256i eights[2], sizes[2];
  };
  using Input = __m256i;
  static Sums start(int32_t) {
    const __m256i begin = _mm256_castps_si256(_mm256_set1_ps(kToInteger));
    return {{begin, begin}};
  }
  static Weight weight(const uint32_t* words) {
    Weight w;
    for (int i = 0; i < 2; ++i) {
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words + 8 * i));
      w.eights[i] = _mm256_xor_si256(bytes, _mm256_set1_epi8(-128));
      w.sizes[i] = _mm256_abs_epi8(w.eights[i]);
    }
    return w;
  }
  static Input input(uint32_t word) { return _mm256_set1_epi32(static_cast<int>(word)); }
  static void step(Sums& sums, const Weight& weight, Input input) {
    for (int i = 0; i < 2; ++i) {
      const __m256i pairs = _mm256_maddubs_epi16(weight.sizes[i], _mm256_sign_epi8(input, weight.eights[i]));
      sums.eights[i] = _mm256_add_epi32(sums.eights[i], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
      asm("" : "+x"(sums.eights[i]));  // else GCC adds products to each other first and keeps them in memory
    }
  }
  static Vec floats(const Sums& sums, int part) { return _mm256_castsi256_ps(sums.eights[part]); }
};

// Sums of few bits, two of 16 bits for an output: a block of them fits, of q6_k if it begins at the row's start. So a
// step is two instructions.
struct FewSums : Int8Dot {
  static constexpr int32_t kNothing = 0;
  using Weight = Sums;
  static Sums from(int32_t value) { return {{_mm256_set1_epi32(value), _mm256_set1_epi32(value)}}; }
  static Weight as_they_are(const uint32_t* words) {
    const auto* at = reinterpret_cast<const __m256i*>(words);
    return {{_mm256_load_si256(at), _mm256_load_si256(at + 1)}};
  }
  static void step(Sums& sums, const Weight& weight, Input input) {
    for (int i = 0; i < 2; ++i) {
      sums.eights[i] = _mm256_add_epi16(sums.eights[i], _mm256_maddubs_epi16(weight.eights[i], input));
      asm("" : "+x"(sums.eights[i]));
    }
  }
  static Vec floats(const Sums& sums, int part) {
    const __m256i whole = _mm256_madd_epi16(sums.eights[part], _mm256_set1_epi16(1));
    return _mm256_castsi256_ps(_mm256_add_epi32(whole, _mm256_set1_epi32(kNoSum)));
  }
};
