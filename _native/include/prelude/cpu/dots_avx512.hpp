// Sums of packed products by 512-bit vectors: VNNI for int8, AVX512-BF16 for bfloat16. See body_packed.hpp.

inline Vec fused(Vec a, Vec b, Vec c) { return fma(a, b, c); }
inline Vec summed(Vec sum, Vec a, Vec b) { return fused(a, b, sum); }
inline void bytes(Vec v, uint32_t* to) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(_mm512_castps_si512(v)));
}
inline Vec halves(const uint32_t* words) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(words)));
}
inline Vec of_bytes(const int8_t* bytes) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes))));
}
template <bool kSix>
inline void open_halves(const uint32_t* words, const uint32_t* two, int at, uint32_t* low, uint32_t* high) {
  const __m512i both = _mm512_loadu_si512(words), half = _mm512_set1_epi8(15);
  __m512i lower = _mm512_and_si512(both, half), upper = _mm512_and_si512(_mm512_srli_epi32(both, 4), half);
  if constexpr (kSix) {
    const __m512i bits = _mm512_srli_epi32(_mm512_loadu_si512(two), static_cast<unsigned>(at));
    const __m512i place = _mm512_set1_epi8(48);
    // 0xF8: the first operand, or both of the others.
    lower = _mm512_ternarylogic_epi32(lower, _mm512_slli_epi32(bits, 4), place, 0xF8);
    upper = _mm512_ternarylogic_epi32(upper, bits, place, 0xF8);
  }
  _mm512_store_si512(low, lower);
  _mm512_store_si512(high, upper);
}
inline Vec of_pairs(const uint32_t* words, int part) {
  const __m512i pairs = _mm512_loadu_si512(words);
  return _mm512_castsi512_ps(part == 0 ? _mm512_slli_epi32(pairs, 16)
                                       : _mm512_and_si512(pairs, _mm512_set1_epi32(-65536)));
}
// 24 sums, two weights and an input fit in the registers.
constexpr bool kPairSums = false;
constexpr int kFloatRows = 12, kFloatWide = 2, kFloatWords = 384, kFloatSteps = 2;

// Seven rows by 32 outputs: 14 sums of a block, as many of the blocks before it and two weights fit in the 32
// registers. Twelve rows, with half of the sums in memory, are slower.
struct Int8Dot {
  static constexpr Packing kPacking = Packing::int8;
  static constexpr int kRows = 7, kWide = 2, kFewRows = 14;
  using Sums = __m512i;
  using Weight = __m512i;
  using Input = const uint32_t*;
  static constexpr int32_t kNothing = kNoSum;
  static Sums from(int32_t value) { return _mm512_set1_epi32(value); }
  static Sums start(int32_t value) { return from(value); }
  static Weight as_they_are(const uint32_t* words) { return _mm512_loadu_si512(words); }
  static Weight weight(const uint32_t* words) { return as_they_are(words); }
  static Input input(const uint32_t& word) { return &word; }
  // The intrinsic of GCC 12 copies the sums on their way and runs out of registers. The instruction
  // spreads the word itself: one fewer of each three.
  static void step(Sums& sums, Weight weight, Input input) {
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(weight), "m"(*input));
  }
  static Vec floats(Sums sums, int) { return _mm512_castsi512_ps(sums); }
};

// Twelve rows by 32 outputs: 24 sums, two weights and an input fit in the registers.
struct Bf16Dot {
  static constexpr Packing kPacking = Packing::bf16;
  static constexpr int kRows = 12, kWide = 2, kParts = 1, kFewRows = 24;
  using Sums = __m512;
  using Weight = __m512i;
  using Input = __m512i;
  static Sums start() { return zero(); }
  static Sums sums(const float* values) { return load(values); }
  static Weight weight(const uint32_t* words, int) { return _mm512_loadu_si512(words); }
  static Input input(uint32_t word) { return _mm512_set1_epi32(static_cast<int>(word)); }
  static void step(Sums& sums, Weight weight, Input input) {
    sums = _mm512_dpbf16_ps(sums, (__m512bh)weight, (__m512bh)input);
  }
  static Vec floats(Sums sums, int) { return sums; }
};
