// Lanes for any compiler and machine: plain loops of constant length, which compilers turn into the vector
// instructions that the build's baseline has (SSE2, NEON).
//
// Included once, inside a namespace, by targets.hpp; lanes_avx512.hpp explains each name.

constexpr int kLanes = 8;
constexpr int kTileRows = 4;
constexpr int kKeyVectors = 1;
constexpr int kValueVectors = 1;
constexpr int kPagedHeads = 2;
constexpr int kPagedVectors = 2;

struct Vec {
  float lane[kLanes];
};

#define PRELUDE_EACH_LANE for (int l = 0; l < kLanes; ++l)
inline Vec load(const float* p) {  // which may be words
  Vec v;
  std::memcpy(v.lane, p, sizeof v);
  return v;
}
inline Vec load(const uint16_t* p) {
  Vec v;
  PRELUDE_EACH_LANE {
    const uint32_t wide = static_cast<uint32_t>(p[l]) << 16;
    std::memcpy(&v.lane[l], &wide, 4);
  }
  return v;
}
inline void store(float* p, Vec v) { PRELUDE_EACH_LANE p[l] = v.lane[l]; }
inline void store(uint16_t* p, Vec v) { PRELUDE_EACH_LANE p[l] = as_bf16(v.lane[l]); }
inline Vec load_some(const float* p, int n) {
  Vec v;
  PRELUDE_EACH_LANE v.lane[l] = l < n ? p[l] : 0.0f;
  return v;
}
inline void store_some(float* p, Vec v, int n) {
  for (int l = 0; l < n; ++l) p[l] = v.lane[l];
}
inline void fetch(const void*) {}
inline void fetch_far(const void*) {}
inline Vec in_register(Vec v) { return v; }
inline Vec same(float x) {
  Vec v;
  PRELUDE_EACH_LANE v.lane[l] = x;
  return v;
}
inline Vec zero() { return same(0.0f); }
inline Vec add(Vec a, Vec b) {
  PRELUDE_EACH_LANE a.lane[l] += b.lane[l];
  return a;
}
inline Vec mul(Vec a, Vec b) {
  PRELUDE_EACH_LANE a.lane[l] *= b.lane[l];
  return a;
}
inline Vec div(Vec a, Vec b) {
  PRELUDE_EACH_LANE a.lane[l] /= b.lane[l];
  return a;
}
inline Vec fma(Vec a, Vec b, Vec c) {
  PRELUDE_EACH_LANE c.lane[l] += a.lane[l] * b.lane[l];
  return c;
}
inline Vec fnma(Vec a, Vec b, Vec c) {
  PRELUDE_EACH_LANE c.lane[l] -= a.lane[l] * b.lane[l];
  return c;
}
inline Vec max(Vec a, Vec b) {
  PRELUDE_EACH_LANE b.lane[l] = a.lane[l] > b.lane[l] ? a.lane[l] : b.lane[l];
  return b;
}
inline Vec min(Vec a, Vec b) {
  PRELUDE_EACH_LANE b.lane[l] = a.lane[l] < b.lane[l] ? a.lane[l] : b.lane[l];
  return b;
}
inline Vec nearest(Vec a) {
  // Adding and taking away 1.5 * 2^23 rounds to an integer, ties to even; for |a| below 2^22.
  PRELUDE_EACH_LANE {
    volatile float shifted = a.lane[l] + 12582912.0f;
    a.lane[l] = shifted - 12582912.0f;
  }
  return a;
}
inline Vec times_power_of_two(Vec a, Vec n) {
  PRELUDE_EACH_LANE {
    // -126 <= n <= 127; NaN has no place here, the caller's `a` carries it.
    const float power = n.lane[l] >= -126.0f ? n.lane[l] : -126.0f;
    const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(power) + 127) << 23;
    float factor;
    std::memcpy(&factor, &bits, 4);
    a.lane[l] *= factor;
  }
  return a;
}
inline Vec zero_where_below(Vec a, Vec x, float edge) {
  PRELUDE_EACH_LANE a.lane[l] = x.lane[l] < edge ? 0.0f : a.lane[l];
  return a;
}
inline float sum(Vec v) {
  return ((v.lane[0] + v.lane[4]) + (v.lane[2] + v.lane[6])) + ((v.lane[1] + v.lane[5]) + (v.lane[3] + v.lane[7]));
}
inline void four_sums(const Vec* v, float* sums) {
  for (int i = 0; i < 4; ++i) sums[i] = sum(v[i]);
}
inline float largest(Vec v) {
  float most = v.lane[0];
  for (int l = 1; l < kLanes; ++l) most = v.lane[l] > most ? v.lane[l] : most;
  return most;
}
inline void four_largest(const Vec* v, float* most) {
  for (int i = 0; i < 4; ++i) most[i] = largest(v[i]);
}
// (a, b) pairs times (c, s): (ac - bs, ad + bc) as complex numbers.
inline Vec rotate_pairs(Vec x, Vec t) {
  Vec y;
  for (int l = 0; l < kLanes; l += 2) {
    y.lane[l] = x.lane[l] * t.lane[l] - x.lane[l + 1] * t.lane[l + 1];
    y.lane[l + 1] = x.lane[l + 1] * t.lane[l] + x.lane[l] * t.lane[l + 1];
  }
  return y;
}
// out[d * kLanes + l] = rows[l][d] for d in 0 ... kLanes - 1
inline void weave(const float* const* rows, float* out, int64_t apart) {
  for (int d = 0; d < kLanes; ++d)
    for (int l = 0; l < 4; ++l) out[d * apart + l] = rows[l][d];
}
#undef PRELUDE_EACH_LANE
