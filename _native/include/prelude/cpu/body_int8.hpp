// Products of int8 with a scale for each block of inputs. Included once per target, inside its namespace, after
// dots_*.hpp and before body_packed.hpp, which names the functions it takes from them.
//
// The order of the float32 operations is part of the format: an output begins at 0, and block after block becomes
// fma(float(sum) * scale of the weight, scale of the row, output). So the bits are the same for every target.

inline Vec load_some(const uint16_t* p, int n) {
  float x[kLanes] = {};
  for (int l = 0; l < n; ++l) x[l] = as_float(p[l]);
  return load(x);
}

// A row of x as integers, the block's start and its scale: kRowWords words a block, `apart` words between a word and
// the next. A row that holds a NaN or an infinity has a NaN for its first scale.
template <class Value>
inline void quantize_row(const Value* x, int64_t inputs, uint32_t* words, int64_t apart) {
  constexpr int kVectors = kBlock / kLanes;
  const Vec to_integer = same(kToInteger);
  Vec broken = zero();
  uint32_t* to = words;
  for (int64_t i = 0; i < inputs; i += kBlock, to += kRowWords * apart) {
    Vec v[kVectors];
    Vec most = zero(), total = zero();
    for (int k = 0; k < kVectors; ++k) {
      const auto left = static_cast<int>(std::min<int64_t>(inputs - i - k * kLanes, kLanes));
      v[k] = left == kLanes ? load(x + i + k * kLanes) : left > 0 ? load_some(x + i + k * kLanes, left) : zero();
      most = max(most, max(v[k], fnma(v[k], same(1.0f), zero())));
      broken = fma(v[k], zero(), broken);
    }
    const float largest_value = largest(most);
    const bool small = !(largest_value >= kLeastScaled);
    const float scale = small ? 0.0f : largest_value / 127.0f;
    const Vec by = same(small ? 0.0f : 127.0f / largest_value);
    for (int k = 0; k < kVectors; ++k) {
      const Vec shifted = fused(v[k], by, to_integer);
      total = add(total, fnma(to_integer, same(1.0f), shifted));
      uint32_t made[kLanes / 4];
      bytes(shifted, made);
      for (int w = 0; w < kLanes / 4; ++w) to[(k * kLanes / 4 + w) * apart] = made[w];
    }
    const float sum_of_block = sum(total);  // integers below 2^24: exact in any order
    const int32_t start = std::fabs(sum_of_block) <= 127.0f * kBlock ? -128 * static_cast<int32_t>(sum_of_block) : 0;
    to[kBlockWords * apart] = static_cast<uint32_t>(start);
    std::memcpy(to + (kBlockWords + 1) * apart, &scale, 4);
  }
  if (sum(broken) != 0.0f) {
    const float not_a_number = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(words + (kBlockWords + 1) * apart, &not_a_number, 4);
  }
}

// R rows, interleaved at `x`, by P halves of groups at `w`, whose scales are at `scales`.
template <class Dot, int R, int P>
inline void sum_int8(const uint32_t* const* w, const uint32_t* const* scales, const uint32_t* x, int64_t inputs,
                     float (*made)[P * kHalf]) {
  constexpr int kParts = kHalf / kLanes;
  Vec total[R][P * kParts];
  PRELUDE_SPELL_OUT
  for (int r = 0; r < R; ++r) PRELUDE_SPELL_OUT
  for (int v = 0; v < P * kParts; ++v) total[r][v] = zero();
  const int64_t blocks = blocks_of(inputs);
  for (int64_t b = 0; b < blocks; ++b, x += kRowWords * R) {
    typename Dot::Sums sums[R][P];
    PRELUDE_SPELL_OUT
    for (int r = 0; r < R; ++r) PRELUDE_SPELL_OUT
    for (int p = 0; p < P; ++p) sums[r][p] = Dot::start(static_cast<int32_t>(x[kBlockWords * R + r]));
    for (int i = 0; i < kBlockWords; ++i) {
      typename Dot::Weight weight[P];
      PRELUDE_SPELL_OUT
      for (int p = 0; p < P; ++p) weight[p] = Dot::weight(w[p] + b * kBlockGroupWords + i * kGroup);
      PRELUDE_SPELL_OUT
      for (int r = 0; r < R; ++r) {
        const typename Dot::Input input = Dot::input(x[i * R + r]);
        PRELUDE_SPELL_OUT
        for (int p = 0; p < P; ++p) Dot::step(sums[r][p], weight[p], input);
      }
    }
    Vec scale[P * kParts];
    PRELUDE_SPELL_OUT
    for (int p = 0; p < P; ++p) PRELUDE_SPELL_OUT
    for (int part = 0; part < kParts; ++part)
      scale[p * kParts + part] = Dot::scales(scales[p] + b * kBlockGroupWords + part * kLanes / 2);
    PRELUDE_SPELL_OUT
    for (int r = 0; r < R; ++r) {
      float scale_of_row;
      std::memcpy(&scale_of_row, x + (kBlockWords + 1) * R + r, 4);
      PRELUDE_SPELL_OUT
      for (int p = 0; p < P; ++p) PRELUDE_SPELL_OUT
      for (int part = 0; part < kParts; ++part) {
        Vec& one = total[r][p * kParts + part];
        one = fused(mul(Dot::floats(sums[r][p], part), scale[p * kParts + part]), same(scale_of_row), one);
      }
    }
  }
  PRELUDE_SPELL_OUT
  for (int r = 0; r < R; ++r) PRELUDE_SPELL_OUT
  for (int v = 0; v < P * kParts; ++v) store(&made[r][v * kLanes], total[r][v]);
}
