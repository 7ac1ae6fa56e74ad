// Sums of packed products by NEON. See body_packed.hpp.

inline Vec fused(Vec a, Vec b, Vec c) { return fma(a, b, c); }
inline Vec summed(Vec sum, Vec a, Vec b) { return fused(a, b, sum); }
inline void bytes(Vec v, uint32_t* to) {
  const uint16x4_t halves = vmovn_u32(vreinterpretq_u32_f32(v));
  *to = vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(halves, halves))), 0);
}
inline Vec halves(const uint32_t* words) {
  float16x4_t four;
  std::memcpy(&four, words, sizeof four);
  return vcvt_f32_f16(four);
}
inline Vec of_bytes(const int8_t* bytes) {
  uint32_t four;
  std::memcpy(&four, bytes, sizeof four);
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(four)))));
}
template <bool kSix>
inline void open_halves(const uint32_t* words, const uint32_t* two, int at, uint32_t* low, uint32_t* high) {
  const uint32x4_t both = vld1q_u32(words), half = vdupq_n_u32(0x0F0F0F0Fu);
  uint32x4_t lower = vandq_u32(both, half), upper = vandq_u32(vshrq_n_u32(both, 4), half);
  if constexpr (kSix) {
    const uint32x4_t bits = vshlq_u32(vld1q_u32(two), vdupq_n_s32(-at)), place = vdupq_n_u32(0x30303030u);
    lower = vorrq_u32(lower, vandq_u32(vshlq_n_u32(bits, 4), place));
    upper = vorrq_u32(upper, vandq_u32(bits, place));
  }
  vst1q_u32(low, lower);
  vst1q_u32(high, upper);
}
inline Vec of_pairs(const uint32_t* words, int part) {
  const uint32x4_t pairs = vld1q_u32(words);
  return vreinterpretq_f32_u32(part == 0 ? vshlq_n_u32(pairs, 16) : vandq_u32(pairs, vdupq_n_u32(0xFFFF0000u)));
}
// 24 vectors of sums, four of weights and an input.
constexpr bool kPairSums = false;
constexpr int kFloatRows = 6, kFloatWide = 1, kFloatWords = 192, kFloatSteps = 1;

// Exact int8 sums of three rows by 16 outputs: twelve vectors of a block, as many of the blocks before it, four of
// weights and an input. Both sides are signed: a weight's byte, which is 128 too large, becomes that by its highest
// bit, so that sums begin at 0. The instruction for dot products is of ARMv8.2 and asked for by `kDot`.
template <bool kDot>
struct Int8Sums {
  static constexpr Packing kPacking = Packing::int8;
  static constexpr int kRows = 3, kWide = 1, kFewRows = 0;
  struct Sums {
    int32x4_t fours[4];
  };
  struct Weight {
    int8x16_t fours[4];
  };
  using Input = int8x16_t;
  static constexpr int32_t kNothing = kNoSum;
  static Sums from(int32_t value) {
    const int32x4_t begin = vdupq_n_s32(value);
    return {{begin, begin, begin, begin}};
  }
  static Sums start(int32_t) { return from(kNoSum); }
  static Weight as_they_are(const uint32_t* words) {
    Weight w;
    for (int i = 0; i < 4; ++i) w.fours[i] = vreinterpretq_s8_u32(vld1q_u32(words + 4 * i));
    return w;
  }
  static Weight weight(const uint32_t* words) {
    Weight w = as_they_are(words);
    for (int8x16_t& four : w.fours) four = veorq_s8(four, vdupq_n_s8(-128));
    return w;
  }
  static Input input(uint32_t word) { return vreinterpretq_s8_u32(vdupq_n_u32(word)); }
  static void step(Sums& sums, const Weight& weight, Input input) {
    for (int i = 0; i < 4; ++i) {
      int32x4_t& sum = sums.fours[i];
      const int8x16_t w = weight.fours[i];
      if constexpr (kDot) {
#ifdef __ARM_FEATURE_DOTPROD
        sum = vdotq_s32(sum, w, input);
#else  // compilers keep the intrinsic to themselves until they are told that every processor has it
        asm(".arch armv8.2-a+dotprod\n\tsdot %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(w), "w"(input));
#endif
      } else {
        // Two products of 128 * 127 at most fit in 16 bits.
        const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(input)), high = vmull_high_s8(w, input);
        sum = vpadalq_s16(sum, vpaddq_s16(low, high));
      }
    }
  }
  static Vec floats(const Sums& sums, int part) { return vreinterpretq_f32_s32(sums.fours[part]); }
};
