// Products of int8 and of q4_k: integers with a scale for each block of inputs. Included once per target, inside its
// namespace, after dots_*.hpp and before body_packed.hpp, which names the functions it takes from them.
//
// The order of the float32 operations is part of the format: an output begins at 0, and block after block becomes
// fma(float(sum) * scale of the weight, scale of the row, output), of q4_k fma(fma(-sum of the row, least, float(sum)
// * scale of the weight), scale of the row, output). So the bits are the same for every target.

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

// The weights of int8, as bytes that are 128 too large. `lane` is the first of kHalf outputs of the group at `group`.
struct EightBits {
  const uint32_t* words;  // of the block, kApart from one to the next
  const uint32_t* scales;
  static constexpr int kApart = kGroup;
  void open(const uint32_t* group, int lane, int64_t block) {
    words = group + block * kBlockGroupWords + lane;
    scales = words + kBlockWords * kGroup - lane / 2;
  }
  Vec scale(int part) const { return halves(scales + part * kLanes / 2); }
  Vec least(int) const { return zero(); }
};

// The weights of q4_k, opened to such bytes.
struct FourBits {
  alignas(64) uint32_t words[kBlockWords * kHalf];
  const uint32_t* both;  // scales of float16
  const uint8_t* by;
  static constexpr int kApart = kHalf;
  void open(const uint32_t* group, int lane, int64_t block) {
    const uint32_t* all = group + block / kFourBlocks * kFourGroupWords;
    const uint32_t* from = all + kGroup + block % kFourBlocks * kFourBlockGroupWords;
    both = all + lane / 2, by = reinterpret_cast<const uint8_t*>(from + kFourWords) + lane;
    constexpr int kApartHalves = kBlockWords / 2 * kHalf;
    PRELUDE_SPELL_OUT
    for (int i = 0; i < kApartHalves; i += kLanes)
      open_halves(from + i / kHalf * kGroup + lane + i % kHalf, words + i, words + i + kApartHalves);
  }
  Vec scale(int part) const { return mul(halves(both + part * kLanes / 2), of_bytes(by + part * kLanes)); }
  Vec least(int part) const {
    return mul(halves(both + kGroup / 2 + part * kLanes / 2), of_bytes(by + kGroup + part * kLanes));
  }
};

// R rows of `of_row` words at `x`, one behind the other, by P halves of groups, whose first lanes are `lanes`.
template <class Dot, int R, int P>
inline void sum_integers(const uint32_t* const* groups, const int* lanes, const uint32_t* x, int64_t of_row,
                         float (*made)[P * kHalf]) {
  constexpr int kParts = kHalf / kLanes;
  constexpr bool kLeast = Dot::kPacking == Packing::q4_k;
  using Bits = std::conditional_t<kLeast, FourBits, EightBits>;
  Vec total[R][P * kParts];
  PRELUDE_SPELL_OUT
  for (int r = 0; r < R; ++r) PRELUDE_SPELL_OUT
  for (int v = 0; v < P * kParts; ++v) total[r][v] = zero();
  for (int64_t b = 0; b < of_row / kRowWords; ++b, x += kRowWords) {
    Bits w[P];
    PRELUDE_SPELL_OUT
    for (int p = 0; p < P; ++p) w[p].open(groups[p], lanes[p], b);
    typename Dot::Sums sums[R][P];
    PRELUDE_SPELL_OUT
    for (int r = 0; r < R; ++r) PRELUDE_SPELL_OUT
    for (int p = 0; p < P; ++p) sums[r][p] = Dot::start(static_cast<int32_t>(x[r * of_row + kBlockWords]));
    PRELUDE_SPELL_OUT
    for (int i = 0; i < kBlockWords; ++i) {
      typename Dot::Weight weight[P];
      PRELUDE_SPELL_OUT
      for (int p = 0; p < P; ++p) weight[p] = Dot::weight(w[p].words + i * Bits::kApart);
      PRELUDE_SPELL_OUT
      for (int r = 0; r < R; ++r) {
        const typename Dot::Input input = Dot::input(x[r * of_row + i]);
        PRELUDE_SPELL_OUT
        for (int p = 0; p < P; ++p) Dot::step(sums[r][p], weight[p], input);
      }
    }
    Vec scale[P * kParts], least[P * kParts];
    PRELUDE_SPELL_OUT
    for (int p = 0; p < P; ++p) PRELUDE_SPELL_OUT
    for (int part = 0; part < kParts; ++part) {
      scale[p * kParts + part] = w[p].scale(part);
      if constexpr (kLeast) least[p * kParts + part] = w[p].least(part);
    }
    PRELUDE_SPELL_OUT
    for (int r = 0; r < R; ++r) {
      float scale_of_row;
      std::memcpy(&scale_of_row, x + r * of_row + kBlockWords + 1, 4);
      const Vec minus = same(static_cast<float>(static_cast<int32_t>(x[r * of_row + kBlockWords])) / 128.0f);
      PRELUDE_SPELL_OUT
      for (int p = 0; p < P; ++p) PRELUDE_SPELL_OUT
      for (int part = 0; part < kParts; ++part) {
        Vec& one = total[r][p * kParts + part];
        Vec sum = mul(Dot::floats(sums[r][p], part), scale[p * kParts + part]);
        if constexpr (kLeast) sum = fused(minus, least[p * kParts + part], sum);
        one = fused(sum, same(scale_of_row), one);
      }
    }
  }
  PRELUDE_SPELL_OUT
  for (int r = 0; r < R; ++r) PRELUDE_SPELL_OUT
  for (int v = 0; v < P * kParts; ++v) store(&made[r][v * kLanes], total[r][v]);
}
