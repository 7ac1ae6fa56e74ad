// Exact int8 sums by AVX2: bytes are widened to 16 bits, since its product of bytes saturates. See body_packed.hpp.

inline Vec fused(Vec a, Vec b, Vec c) { return fma(a, b, c); }
inline void bytes(Vec v, uint32_t* to) {
  float lanes[kLanes];
  store(lanes, v);
  uint8_t made[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    uint32_t bits;
    std::memcpy(&bits, lanes + l, 4);
    made[l] = static_cast<uint8_t>(bits);
  }
  std::memcpy(to, made, sizeof made);
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
  __m256i above = _mm256_set1_epi8(-128), above_high = above;
  if constexpr (kSix) {
    const __m256i bits = _mm256_srli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(two)), at);
    const __m256i place = _mm256_set1_epi8(48), more = _mm256_set1_epi8(96);
    above = _mm256_add_epi8(_mm256_and_si256(_mm256_slli_epi32(bits, 4), place), more);
    above_high = _mm256_add_epi8(_mm256_and_si256(bits, place), more);
  }
  const __m256i upper = _mm256_srli_epi32(both, 4);
  _mm256_store_si256(reinterpret_cast<__m256i*>(low), _mm256_or_si256(_mm256_and_si256(both, half), above));
  _mm256_store_si256(reinterpret_cast<__m256i*>(high), _mm256_or_si256(_mm256_and_si256(upper, half), above_high));
}
inline Vec of_pairs(const uint32_t* words, int part) {
  const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
  // A shuffle does not take a unit that multiplies, as a shift does.
  const __m256i up = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0D0C'8080'0908'8080, 0x0504'8080'0100'8080));
  return _mm256_castsi256_ps(part == 0 ? _mm256_shuffle_epi8(pairs, up)
                                       : _mm256_and_si256(pairs, _mm256_set1_epi32(-65536)));
}
// Twelve vectors of sums, two of weights and an input.
constexpr int kFloatRows = 6, kFloatWide = 1;

// Three rows by 16 outputs: twelve vectors of sums, each of four outputs and two sums an output.
struct Int8Dot {
  static constexpr Packing kPacking = Packing::int8;
  static constexpr int kRows = 3, kWide = 1;
  struct Sums {
    __m256i fours[4];
  };
  struct Weight {
    __m256i fours[4];
  };
  using Input = __m256i;
  static Sums start(int32_t value) {
    const __m256i once = _mm256_set1_epi64x(static_cast<uint32_t>(value));
    return {{once, once, once, once}};
  }
  static Weight weight(const uint32_t* words) {
    Weight w;
    for (int i = 0; i < 4; ++i)
      w.fours[i] = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(words + 4 * i)));
    return w;
  }
  static Input input(uint32_t word) {
    return _mm256_broadcastq_epi64(_mm_cvtepi8_epi16(_mm_cvtsi32_si128(static_cast<int>(word))));
  }
  static void step(Sums& sums, const Weight& weight, Input input) {
    for (int i = 0; i < 4; ++i)
      sums.fours[i] = _mm256_add_epi32(sums.fours[i], _mm256_madd_epi16(weight.fours[i], input));
  }
  static Vec floats(const Sums& sums, int part) {
    const __m256i mixed = _mm256_hadd_epi32(sums.fours[2 * part], sums.fours[2 * part + 1]);
    return _mm256_castsi256_ps(_mm256_permute4x64_epi64(mixed, 0xD8));
  }
};
