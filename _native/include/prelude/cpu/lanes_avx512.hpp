// Sixteen lanes of AVX-512 F. Included once, inside a namespace compiled for that target, by targets.hpp.
//
// The vocabulary of the kernels, which each lanes_*.hpp gives:
//   kLanes                       floats in a vector
//   kTileRows                    rows of an attention tile: kTileRows * max(kKeyVectors, kValueVectors) sums
//                                and their operands fit in the registers
//   kPagedHeads                  query heads that meet four keys at a time: so many times four sums, the queries and
//                                a key fit in the registers
//   kPagedVectors                of a value at a time: that many sums a head, a weight a head and a value fit too
//   load, store                  of floats, or of bfloat16: ties to even, and NaN stays NaN
//   fetch, fetch_far             a prefetch of memory that will be read soon, into the nearest or the second cache
//   in_register                  loaded once, where a compiler would rather load again for each use
//   load_some, store_some        the first n lanes; the others read as 0 and are not written
//   fma, fnma                    a * b + c and c - a * b
//   max, min                     the second operand where one of them is NaN
//   nearest                      to an integer, ties to even
//   times_power_of_two           a * 2^n, n an integer in [-126, 127]
//   zero_where_below             0 where x < edge, else a
//   sum, largest                 over the lanes, in a fixed order
//   four_sums                    the sums of four vectors, in another fixed order
//   four_largest                 the largest lane of each of four vectors
//   rotate_pairs                 complex products of (even, odd) lanes
//   weave                        out[d * apart + l] = rows[l][d], d below kLanes and l below 4, the first d first

constexpr int kLanes = 16;
constexpr int kTileRows = 12;
constexpr int kKeyVectors = 2;
constexpr int kValueVectors = 2;
constexpr int kPagedHeads = 4;
constexpr int kPagedVectors = 2;

using Vec = __m512;

inline __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline Vec load(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
inline void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
inline void store(uint16_t* p, Vec v) {
  const __m512i bits = _mm512_castps_si512(v), high = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i made = _mm512_mask_or_epi32(_mm512_srli_epi32(up, 16), nan, high, _mm512_set1_epi32(0x40));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(made));
}
inline Vec load_some(const float* p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
inline void store_some(float* p, Vec v, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), v); }
inline void fetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
inline void fetch_far(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
inline Vec in_register(Vec v) {
  asm("" : "+v"(v));
  return v;
}
inline Vec same(float x) { return _mm512_set1_ps(x); }
inline Vec zero() { return _mm512_setzero_ps(); }
inline Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec fnma(Vec a, Vec b, Vec c) { return _mm512_fnmadd_ps(a, b, c); }
inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline Vec nearest(Vec a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Vec times_power_of_two(Vec a, Vec n) { return _mm512_scalef_ps(a, n); }
inline Vec zero_where_below(Vec a, Vec x, float edge) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, same(edge), _CMP_NLT_UQ), a);
}
inline float sum(Vec v) { return _mm512_reduce_add_ps(v); }
inline void four_sums(const Vec* v, float* sums) {
  __m256 folded[4];
  for (int i = 0; i < 4; ++i) {
    const __m256 upper = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v[i]), 1));
    folded[i] = _mm256_add_ps(_mm512_castps512_ps256(v[i]), upper);
  }
  const __m256 all = _mm256_hadd_ps(_mm256_hadd_ps(folded[0], folded[1]), _mm256_hadd_ps(folded[2], folded[3]));
  _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
}
inline float largest(Vec v) { return _mm512_reduce_max_ps(v); }
inline void four_largest(const Vec* v, float* most) {
  __m256 folded[4];
  for (int i = 0; i < 4; ++i) {
    const __m256 upper = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v[i]), 1));
    folded[i] = _mm256_max_ps(_mm512_castps512_ps256(v[i]), upper);
  }
  const __m256 a = _mm256_max_ps(_mm256_unpacklo_ps(folded[0], folded[1]), _mm256_unpackhi_ps(folded[0], folded[1]));
  const __m256 b = _mm256_max_ps(_mm256_unpacklo_ps(folded[2], folded[3]), _mm256_unpackhi_ps(folded[2], folded[3]));
  const __m256 all = _mm256_max_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xEE));
  _mm_storeu_ps(most, _mm_max_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
}
inline Vec rotate_pairs(Vec x, Vec t) {
  const Vec crossed = _mm512_mul_ps(_mm512_permute_ps(x, 0xB1), _mm512_movehdup_ps(t));
  return _mm512_fmaddsub_ps(x, _mm512_moveldup_ps(t), crossed);
}
inline void weave(const float* const* rows, float* out, int64_t apart) {
  const Vec a = load(rows[0]), b = load(rows[1]), c = load(rows[2]), d = load(rows[3]);
  const Vec low = _mm512_unpacklo_ps(a, b), high = _mm512_unpackhi_ps(a, b);
  const Vec low2 = _mm512_unpacklo_ps(c, d), high2 = _mm512_unpackhi_ps(c, d);
  const Vec fours[] = {_mm512_shuffle_ps(low, low2, 0x44), _mm512_shuffle_ps(low, low2, 0xEE),
                       _mm512_shuffle_ps(high, high2, 0x44), _mm512_shuffle_ps(high, high2, 0xEE)};
  for (int d = 0; d < 4; ++d) _mm_storeu_ps(out + d * apart, _mm512_castps512_ps128(fours[d]));
  for (int d = 0; d < 4; ++d) _mm_storeu_ps(out + (d + 4) * apart, _mm512_extractf32x4_ps(fours[d], 1));
  for (int d = 0; d < 4; ++d) _mm_storeu_ps(out + (d + 8) * apart, _mm512_extractf32x4_ps(fours[d], 2));
  for (int d = 0; d < 4; ++d) _mm_storeu_ps(out + (d + 12) * apart, _mm512_extractf32x4_ps(fours[d], 3));
}
