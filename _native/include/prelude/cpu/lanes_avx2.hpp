// Eight lanes of AVX2 with FMA. Included once, inside a namespace compiled for that target, by targets.hpp;
// lanes_avx512.hpp explains each name.

constexpr int kLanes = 8;
constexpr int kTileRows = 6;
constexpr int kKeyVectors = 2;
constexpr int kValueVectors = 2;
constexpr int kPagedHeads = 3;
constexpr int kPagedVectors = 4;

using Vec = __m256;

inline __m256i first_lanes(int n) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lanes);
}
inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
inline Vec load(const uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
inline void store(uint16_t* p, Vec v) {
  const __m256i bits = _mm256_castps_si256(v), high = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
  const __m256i made = _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), quiet, nan);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(made, made), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}
inline Vec load_some(const float* p, int n) { return _mm256_maskload_ps(p, first_lanes(n)); }
inline void store_some(float* p, Vec v, int n) { _mm256_maskstore_ps(p, first_lanes(n), v); }
inline void fetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
inline void fetch_far(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
inline Vec in_register(Vec v) {
  asm("" : "+x"(v));
  return v;
}
inline Vec same(float x) { return _mm256_set1_ps(x); }
inline Vec zero() { return _mm256_setzero_ps(); }
inline Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec fnma(Vec a, Vec b, Vec c) { return _mm256_fnmadd_ps(a, b, c); }
inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
inline Vec nearest(Vec a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Vec times_power_of_two(Vec a, Vec n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
inline Vec zero_where_below(Vec a, Vec x, float edge) {
  return _mm256_andnot_ps(_mm256_cmp_ps(x, same(edge), _CMP_LT_OQ), a);
}
inline float sum(Vec v) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
inline void four_sums(const Vec* v, float* sums) {
  const __m256 all = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
  _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
}
inline float largest(Vec v) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}
inline void four_largest(const Vec* v, float* most) {
  const __m256 a = _mm256_max_ps(_mm256_unpacklo_ps(v[0], v[1]), _mm256_unpackhi_ps(v[0], v[1]));
  const __m256 b = _mm256_max_ps(_mm256_unpacklo_ps(v[2], v[3]), _mm256_unpackhi_ps(v[2], v[3]));
  const __m256 all = _mm256_max_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xEE));
  _mm_storeu_ps(most, _mm_max_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
}
inline Vec rotate_pairs(Vec x, Vec t) {
  const Vec crossed = _mm256_mul_ps(_mm256_permute_ps(x, 0xB1), _mm256_movehdup_ps(t));
  return _mm256_fmaddsub_ps(x, _mm256_moveldup_ps(t), crossed);
}
inline void weave(const float* const* rows, float* out, int64_t apart) {
  const Vec a = load(rows[0]), b = load(rows[1]), c = load(rows[2]), d = load(rows[3]);
  const Vec low = _mm256_unpacklo_ps(a, b), high = _mm256_unpackhi_ps(a, b);
  const Vec low2 = _mm256_unpacklo_ps(c, d), high2 = _mm256_unpackhi_ps(c, d);
  const Vec fours[] = {_mm256_shuffle_ps(low, low2, 0x44), _mm256_shuffle_ps(low, low2, 0xEE),
                       _mm256_shuffle_ps(high, high2, 0x44), _mm256_shuffle_ps(high, high2, 0xEE)};
  for (int d = 0; d < 4; ++d) _mm_storeu_ps(out + d * apart, _mm256_castps256_ps128(fours[d]));
  for (int d = 0; d < 4; ++d) _mm_storeu_ps(out + (d + 4) * apart, _mm256_extractf128_ps(fours[d], 1));
}
