// Four lanes of NEON, which every 64-bit ARM has. Included once, inside a namespace, by targets.hpp; lanes_avx512.hpp
// explains each name. The 32 registers hold as many floats as the 16 of AVX2.

constexpr int kLanes = 4;
constexpr int kTileRows = 6;
constexpr int kKeyVectors = 4;
constexpr int kValueVectors = 4;
constexpr int kPagedHeads = 4;
constexpr int kPagedVectors = 4;

using Vec = float32x4_t;

inline Vec load(const float* p) { return vld1q_f32(p); }
inline Vec load(const uint16_t* p) { return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vld1_u16(p)), 16)); }
inline void store(float* p, Vec v) { vst1q_f32(p, v); }
inline void store(uint16_t* p, Vec v) {
  const uint32x4_t bits = vreinterpretq_u32_f32(v), high = vshrq_n_u32(bits, 16);
  const uint32x4_t up = vaddq_u32(bits, vaddq_u32(vandq_u32(high, vdupq_n_u32(1)), vdupq_n_u32(0x7FFF)));
  const uint32x4_t quiet = vorrq_u32(high, vdupq_n_u32(0x40));
  vst1_u16(p, vmovn_u32(vbslq_u32(vceqq_f32(v, v), vshrq_n_u32(up, 16), quiet)));
}
inline Vec load_some(const float* p, int n) {
  float lanes[kLanes] = {};
  for (int l = 0; l < n; ++l) lanes[l] = p[l];
  return load(lanes);
}
inline void store_some(float* p, Vec v, int n) {
  float lanes[kLanes];
  store(lanes, v);
  for (int l = 0; l < n; ++l) p[l] = lanes[l];
}
inline void fetch(const void* p) { __builtin_prefetch(p); }
inline void fetch_far(const void* p) { fetch(p); }
inline Vec in_register(Vec v) {
  asm("" : "+w"(v));
  return v;
}
inline Vec same(float x) { return vdupq_n_f32(x); }
inline Vec zero() { return same(0.0f); }
inline Vec add(Vec a, Vec b) { return vaddq_f32(a, b); }
inline Vec mul(Vec a, Vec b) { return vmulq_f32(a, b); }
inline Vec div(Vec a, Vec b) { return vdivq_f32(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
inline Vec fnma(Vec a, Vec b, Vec c) { return vfmsq_f32(c, a, b); }
inline Vec max(Vec a, Vec b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline Vec min(Vec a, Vec b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
inline Vec nearest(Vec a) { return vrndnq_f32(a); }
inline Vec times_power_of_two(Vec a, Vec n) {
  const int32x4_t exponent = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
  return mul(a, vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
}
inline Vec zero_where_below(Vec a, Vec x, float edge) {
  return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(a), vcltq_f32(x, same(edge))));
}
inline float sum(Vec v) { return vaddvq_f32(v); }
inline void four_sums(const Vec* v, float* sums) {
  store(sums, vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3])));
}
inline float largest(Vec v) { return vmaxvq_f32(v); }
inline void four_largest(const Vec* v, float* most) {
  store(most, vpmaxq_f32(vpmaxq_f32(v[0], v[1]), vpmaxq_f32(v[2], v[3])));
}
inline Vec rotate_pairs(Vec x, Vec t) {
  const uint32x4_t even = vreinterpretq_u32_u64(vdupq_n_u64(0x80000000u));  // the signs of the even lanes
  const uint32x4_t crossed = vreinterpretq_u32_f32(mul(vrev64q_f32(x), vtrn2q_f32(t, t)));
  return fma(x, vtrn1q_f32(t, t), vreinterpretq_f32_u32(veorq_u32(crossed, even)));
}
inline void weave(const float* const* rows, float* out, int64_t apart) {
  float32x4x4_t square;
  for (int i = 0; i < 4; ++i) square.val[i] = load(rows[i]);
  float lanes[16];
  vst4q_f32(lanes, square);
  for (int d = 0; d < kLanes; ++d) store(out + d * apart, load(lanes + 4 * d));
}
