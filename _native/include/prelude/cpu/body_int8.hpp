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

// kLanes values of a row of `inputs` from `at` on; zeros behind its end.
template <class Value>
inline Vec lanes_at(const Value* x, int64_t at, int64_t inputs) {
  const auto left = static_cast<int>(std::min<int64_t>(inputs - at, kLanes));
  return left == kLanes ? load(x + at) : left > 0 ? load_some(x + at, left) : zero();
}

// `count` blocks of a row of `inputs`, at most four, whose vectors are folded together: integers, starts and scales.
// kWhole: there are four, of kBlock values each. False: a block holds a NaN or an infinity.
template <bool kWhole, class Value>
inline bool quantize_blocks(const Value* x, int64_t inputs, int count, uint32_t* words) {
  constexpr int kVectors = kBlock / kLanes, kFour = 4;
  const Vec to_integer = same(kToInteger), one = same(1.0f);
  const auto lanes = [&](int b, int k) {
    const int64_t at = b * kBlock + k * kLanes;
    return kWhole ? load(x + at) : lanes_at(x, at, inputs);
  };
  Vec folded[kFour];
  float most[kFour], scales[kFour], by[kFour], sums[kFour];
  for (int b = 0; b < kFour; ++b) {
    Vec high = zero(), low = zero();
    for (int k = 0; k < kVectors; ++k) {
      const Vec v = lanes(b, k);
      high = max(high, v), low = min(low, v);
    }
    folded[b] = max(high, fnma(low, one, zero()));
  }
  four_largest(folded, most);
  for (int b = 0; b < kFour; ++b) scales[b] = most[b] / 127.0f;
  for (int b = 0; b < kFour; ++b) by[b] = 127.0f / most[b];
  for (int b = 0; b < kFour; ++b)
    if (!(most[b] >= kLeastScaled)) scales[b] = by[b] = 0.0f;
  for (int b = 0; b < kFour; ++b) {
    folded[b] = zero();
    if (!kWhole && b >= count) continue;
    for (int k = 0; k < kVectors; ++k) {
      const Vec shifted = fused(lanes(b, k), same(by[b]), to_integer);
      folded[b] = add(folded[b], fnma(to_integer, one, shifted));
      bytes(shifted, words + b * kRowWords + k * kLanes / 4);
    }
    std::memcpy(words + b * kRowWords + kBlockWords + 1, scales + b, 4);
  }
  four_sums(folded, sums);  // of integers below 2^24, exact in any order; NaN where a value is one or an infinity
  bool finite = true;
  for (int b = 0; b < (kWhole ? kFour : count); ++b) {
    const bool exact = std::fabs(sums[b]) <= 127.0f * kBlock;
    const int32_t start = exact ? -128 * static_cast<int32_t>(sums[b]) : 0;
    words[b * kRowWords + kBlockWords] = static_cast<uint32_t>(start);
    finite = finite && exact;
  }
  return finite;
}

// A row of x as integers, the block's start and its scale: kRowWords words a block. A row that holds a NaN or an
// infinity has a NaN for its first scale.
template <class Value>
inline void quantize_row(const Value* x, int64_t inputs, uint32_t* words) {
  constexpr int64_t kFour = 4 * kBlock;
  bool finite = true;
  int64_t i = 0;
  for (; i + kFour <= inputs; i += kFour)
    finite = quantize_blocks<true>(x + i, kFour, 4, words + i / kBlock * kRowWords) && finite;
  if (i < inputs)
    finite = quantize_blocks<false>(x + i, inputs - i, static_cast<int>(blocks_of(inputs - i)),
                                    words + i / kBlock * kRowWords) &&
             finite;
  if (!finite) {
    const float not_a_number = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(words + kBlockWords + 1, &not_a_number, 4);
  }
}

// R rows of `of_row` words at `x`, one behind the other, by P halves of groups at `w`, whose scales are at `scales`.
template <class Dot, int R, int P>
inline void sum_int8(const uint32_t* const* w, const uint32_t* const* scales, const uint32_t* x, int64_t of_row,
                     float (*made)[P * kHalf]) {
  constexpr int kParts = kHalf / kLanes;
  Vec total[R][P * kParts];
  PRELUDE_SPELL_OUT
  for (int r = 0; r < R; ++r) PRELUDE_SPELL_OUT
  for (int v = 0; v < P * kParts; ++v) total[r][v] = zero();
  for (int64_t b = 0; b < of_row / kRowWords; ++b, x += kRowWords) {
    typename Dot::Sums sums[R][P];
    PRELUDE_SPELL_OUT
    for (int r = 0; r < R; ++r) PRELUDE_SPELL_OUT
    for (int p = 0; p < P; ++p) sums[r][p] = Dot::start(static_cast<int32_t>(x[r * of_row + kBlockWords]));
    for (int i = 0; i < kBlockWords; ++i) {
      typename Dot::Weight weight[P];
      PRELUDE_SPELL_OUT
      for (int p = 0; p < P; ++p) weight[p] = Dot::weight(w[p] + b * kBlockGroupWords + i * kGroup);
      PRELUDE_SPELL_OUT
      for (int r = 0; r < R; ++r) {
        const typename Dot::Input input = Dot::input(x[r * of_row + i]);
        PRELUDE_SPELL_OUT
        for (int p = 0; p < P; ++p) Dot::step(sums[r][p], weight[p], input);
      }
    }
    Vec scale[P * kParts];
    PRELUDE_SPELL_OUT
    for (int p = 0; p < P; ++p) PRELUDE_SPELL_OUT
    for (int part = 0; part < kParts; ++part)
      scale[p * kParts + part] = halves(scales[p] + b * kBlockGroupWords + part * kLanes / 2);
    PRELUDE_SPELL_OUT
    for (int r = 0; r < R; ++r) {
      float scale_of_row;
      std::memcpy(&scale_of_row, x + r * of_row + kBlockWords + 1, 4);
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
