// Exact int8 sums in plain C++. See body_packed.hpp.

inline Vec fused(Vec a, Vec b, Vec c) {
  for (int l = 0; l < kLanes; ++l) c.lane[l] = std::fma(a.lane[l], b.lane[l], c.lane[l]);
  return c;
}
inline Vec summed(Vec sum, Vec a, Vec b) { return fused(a, b, sum); }
inline void bytes(Vec v, uint32_t* to) {
  uint8_t made[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    uint32_t bits;
    std::memcpy(&bits, v.lane + l, 4);
    made[l] = static_cast<uint8_t>(bits);
  }
  std::memcpy(to, made, sizeof made);
}
inline Vec halves(const uint32_t* words) {
  uint16_t bits[kLanes];
  std::memcpy(bits, words, sizeof bits);
  Vec v;
  for (int l = 0; l < kLanes; ++l) v.lane[l] = float_of_half(bits[l]);
  return v;
}
inline Vec of_bytes(const int8_t* bytes) {
  Vec v;
  for (int l = 0; l < kLanes; ++l) v.lane[l] = bytes[l];
  return v;
}
template <bool kSix>
inline void open_halves(const uint32_t* words, const uint32_t* two, int at, uint32_t* low, uint32_t* high) {
  for (int l = 0; l < kLanes; ++l) {
    const uint32_t bits = kSix ? two[l] >> at : 0;
    low[l] = (words[l] & 0x0F0F0F0Fu) | (bits << 4 & 0x30303030u);
    high[l] = (words[l] >> 4 & 0x0F0F0F0Fu) | (bits & 0x30303030u);
  }
}
inline Vec of_pairs(const uint32_t* words, int part) {
  Vec v;
  for (int l = 0; l < kLanes; ++l) {
    const uint32_t bits = part == 0 ? words[l] << 16 : words[l] & 0xFFFF0000u;
    std::memcpy(v.lane + l, &bits, 4);
  }
  return v;
}
constexpr bool kPairSums = false;
constexpr int kFloatRows = 2, kFloatWide = 1, kFloatWords = 192, kFloatSteps = 1;

struct Int8Dot {
  static constexpr Packing kPacking = Packing::int8;
  static constexpr int kRows = 2, kWide = 1, kFewRows = 0;
  struct Sums {
    uint32_t lane[kHalf];  // may wrap on the way; the whole sum does not
  };
  struct Weight {
    uint8_t byte[4 * kHalf];
  };
  struct Input {
    int8_t byte[4];
  };
  static constexpr int32_t kNothing = kNoSum;
  static Sums from(int32_t value) {
    Sums sums;
    for (uint32_t& lane : sums.lane) lane = static_cast<uint32_t>(value);
    return sums;
  }
  static Sums start(int32_t value) { return from(value); }
  static Weight as_they_are(const uint32_t* words) {
    Weight w;
    std::memcpy(&w, words, sizeof w);
    return w;
  }
  static Weight weight(const uint32_t* words) { return as_they_are(words); }
  static Input input(uint32_t word) {
    Input x;
    std::memcpy(&x, &word, sizeof x);
    return x;
  }
  static void step(Sums& sums, const Weight& weight, Input input) {
    for (int l = 0; l < kHalf; ++l) {
      int32_t four = 0;
      for (int b = 0; b < 4; ++b) four += int32_t{weight.byte[4 * l + b]} * input.byte[b];
      sums.lane[l] += static_cast<uint32_t>(four);
    }
  }
  static Vec floats(const Sums& sums, int part) {
    Vec v;
    std::memcpy(&v, sums.lane + part * kLanes, sizeof v);
    return v;
  }
};
