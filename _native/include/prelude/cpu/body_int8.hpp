// Products of int8, q4_k and q6_k: integers with a scale for each block of inputs. Included once per target, inside
// its namespace, after dots_*.hpp and before body_packed.hpp, which names the functions it takes from them.
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

// Minus 32 times the sums of the lower and of the upper integers of each word.
inline uint32_t pair_start(const uint32_t* words, int count) {
  uint32_t lower = 0, upper = 0;
  for (int w = 0; w < count; ++w) {
    int8_t of[4];
    std::memcpy(of, words + w, 4);
    lower -= static_cast<uint32_t>(32 * (of[0] + of[1])), upper -= static_cast<uint32_t>(32 * (of[2] + of[3]));
  }
  return (lower & 0xFFFF) | upper << 16;
}

// `count` blocks of a row of `inputs`, at most four, whose vectors are folded together: integers, starts and scales.
// kWhole: there are four, of kInputs values each. False: a block holds a NaN or an infinity.
template <bool kWhole, int kInputs, class Value>
inline bool quantize_blocks(const Value* x, int64_t inputs, int count, uint32_t* words) {
  constexpr int kVectors = kInputs / kLanes, kWords = kInputs / 4, kFour = 4;
  const Vec to_integer = same(kToInteger), one = same(1.0f);
  const auto lanes = [&](int b, int k) {
    const int64_t at = b * kInputs + k * kLanes;
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
      bytes(shifted, words + b * (kWords + 2) + k * kLanes / 4);
    }
    std::memcpy(words + b * (kWords + 2) + kWords + 1, scales + b, 4);
  }
  four_sums(folded, sums);  // of integers below 2^24, exact in any order; NaN where a value is one or an infinity
  bool finite = true;
  for (int b = 0; b < (kWhole ? kFour : count); ++b) {
    const bool exact = std::fabs(sums[b]) <= 127.0f * kInputs;
    uint32_t* const block = words + b * (kWords + 2);
    const float start = kToInteger - (exact ? (kInputs == kBlock ? 128.0f : 32.0f) * sums[b] : 0.0f);
    if (kPairSums && kInputs < kBlock)
      block[kWords] = pair_start(block, kWords);
    else
      std::memcpy(block + kWords, &start, 4);
    finite = finite && exact;
  }
  return finite;
}

// A row of x as integers, the block's start and its scale: block_row_words a block. A row that holds a NaN or an
// infinity has a NaN for its first scale.
template <int kInputs, class Value>
inline void quantize_row(const Value* x, int64_t inputs, uint32_t* words) {
  constexpr int64_t kFour = 4 * kInputs, kWords = kInputs / 4;
  bool finite = true;
  int64_t i = 0;
  for (; i + kFour <= inputs; i += kFour, words += 4 * (kWords + 2))
    finite = quantize_blocks<true, kInputs>(x + i, kFour, 4, words) && finite;
  if (i < inputs) {
    const auto count = static_cast<int>((inputs - i + kInputs - 1) / kInputs);
    finite = quantize_blocks<false, kInputs>(x + i, inputs - i, count, words) && finite;
  }
  if (!finite) {
    const float not_a_number = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(words - i / kInputs * (kWords + 2) + kWords + 1, &not_a_number, 4);
  }
}

// The weights of int8, as bytes that are 128 too large. `lane` is the first of kHalf outputs of the group at `group`.
struct EightBits {
  const uint32_t* words;  // of the block, kApart from one to the next
  const uint32_t* scales;
  static constexpr int kWords = kBlockWords, kApart = kGroup;
  void open(const uint32_t* group, int lane, int64_t block) {
    words = group + block * kBlockGroupWords + lane;
    scales = words + kBlockWords * kGroup - lane / 2;
  }
  Vec scale(int part) const { return halves(scales + part * kLanes / 2); }
  Vec least(int) const { return zero(); }
};

// The weights of q4_k and q6_k, opened to bytes from 0 to 15, and to 63.
template <Packing kPacking>
struct FewBits {
  static constexpr Few kFew = few_of(kPacking);
  static constexpr bool kSix = kPacking == Packing::q6_k;
  static constexpr int kWords = block_inputs(kPacking) / 4, kApart = kHalf;
  alignas(64) uint32_t words[kWords * kHalf];
  float scales[kHalf], leasts[kHalf];
  void open(const uint32_t* group, int lane, int64_t block) {
    const uint32_t* all = group + block / kFew.blocks * kFew.all();
    const int64_t of = block % kFew.blocks;
    const uint32_t* from = all + kFew.words_at() + of * kFew.words * kGroup + lane;
    const uint32_t* both = all + lane / 2;  // scales of float16
    const auto* by = reinterpret_cast<const int8_t*>(all + kFew.bytes_at()) + of * kFew.scales * kGroup + lane;
    constexpr int kApartHalves = kWords / 2 * kHalf;
    PRELUDE_SPELL_OUT
    for (int i = 0; i < kApartHalves; i += kLanes) {
      const int word = i / kHalf, first = i % kHalf;
      open_halves<kSix>(from + word * kGroup + first, from + kWords / 2 * kGroup + first, 2 * word, words + i,
                        words + i + kApartHalves);
    }
    PRELUDE_SPELL_OUT
    for (int i = 0; i < kHalf; i += kLanes) {
      store(scales + i, mul(halves(both + i / 2), of_bytes(by + i)));
      if (!kSix) store(leasts + i, mul(halves(both + kGroup / 2 + i / 2), of_bytes(by + kGroup + i)));
    }
  }
  Vec scale(int part) const { return load(scales + part * kLanes); }
  Vec least(int part) const { return load(leasts + part * kLanes); }
};

// The same of a group whose blocks were opened before: blocks, each with its halves, lie where `group` is.
template <Packing kPacking>
struct OpenedBits {
  using Opened = FewBits<kPacking>;
  static constexpr int kWords = Opened::kWords, kApart = Opened::kApart;
  static_assert(sizeof(Opened) == block_row_words(kPacking) * kHalf * sizeof(float));
  const Opened* opened;
  const uint32_t* words;
  void open(const uint32_t* group, int lane, int64_t block) {
    opened = reinterpret_cast<const Opened*>(group) + block * (kGroup / kHalf) + lane / kHalf;
    words = opened->words;
  }
  Vec scale(int part) const { return opened->scale(part); }
  Vec least(int part) const { return opened->least(part); }
};

// R rows of `of_row` words at `x`, one behind the other, by P halves of groups, whose first lanes are `lanes`.
// Meanwhile what is `soon` read is fetched. Not inlined: else fewer sums stay in registers.
template <class Dot, class Bits, int R, int P>
[[gnu::noinline]] inline void sum_integers(const uint32_t* const* groups, const int* lanes, const uint32_t* x,
                                           int64_t of_row, Ahead soon, float (*made)[P * kHalf]) {
  constexpr int kParts = kHalf / kLanes;
  constexpr bool kLeast = Dot::kPacking == Packing::q4_k;
  constexpr int kWords = Bits::kWords;
  Vec total[R][P * kParts];
  PRELUDE_SPELL_OUT
  for (int r = 0; r < R; ++r) PRELUDE_SPELL_OUT
  for (int v = 0; v < P * kParts; ++v) total[r][v] = zero();
  // A pointer a row, of which the compiler does not know the distances: else it reads the place of each word from
  // memory before the word.
  const uint32_t* row[R];
  PRELUDE_SPELL_OUT
  for (int r = 0; r < R; ++r) {
    row[r] = x + r * of_row;
    asm("" : "+r"(row[r]));
  }
  int64_t blocks = of_row / (kWords + 2), each = soon.lines / blocks + 1, more = soon.lines % blocks;
  for (int64_t b = 0; b < blocks; ++b) {
    if (more-- == 0) --each;
    Bits w[P];
    PRELUDE_SPELL_OUT
    for (int p = 0; p < P; ++p) w[p].open(groups[p], lanes[p], b);
    for (int64_t line = 0; line < each; ++line) soon.fetch_line();
    typename Dot::Sums sums[R][P];
    PRELUDE_SPELL_OUT
    for (int r = 0; r < R; ++r) PRELUDE_SPELL_OUT
    for (int p = 0; p < P; ++p) sums[r][p] = Dot::start(static_cast<int32_t>(row[r][kWords]));
    PRELUDE_SPELL_OUT
    for (int i = 0; i < kWords; ++i) {
      typename Dot::Weight weight[P];
      PRELUDE_SPELL_OUT
      for (int p = 0; p < P; ++p) weight[p] = Dot::weight(w[p].words + i * Bits::kApart);
      PRELUDE_SPELL_OUT
      for (int r = 0; r < R; ++r) {
        const typename Dot::Input input = Dot::input(row[r][i]);
        PRELUDE_SPELL_OUT
        for (int p = 0; p < P; ++p) Dot::step(sums[r][p], weight[p], input);
      }
    }
    Vec scale[P * kParts], base[P * kParts], least[P * kParts];
    PRELUDE_SPELL_OUT
    for (int p = 0; p < P; ++p) PRELUDE_SPELL_OUT
    for (int part = 0; part < kParts; ++part) {
      scale[p * kParts + part] = w[p].scale(part);
      base[p * kParts + part] = mul(scale[p * kParts + part], same(-kToInteger));
      if constexpr (kLeast) least[p * kParts + part] = mul(w[p].least(part), same(1 / 128.0f));  // exact
    }
    PRELUDE_SPELL_OUT
    for (int r = 0; r < R; ++r) {
      float scale_of_row;
      std::memcpy(&scale_of_row, row[r] + kWords + 1, 4);
      float start;
      std::memcpy(&start, row[r] + kWords, 4);
      const Vec minus = add(same(start), same(-kToInteger));  // 128 times minus the sum of the row
      PRELUDE_SPELL_OUT
      for (int p = 0; p < P; ++p) PRELUDE_SPELL_OUT
      for (int part = 0; part < kParts; ++part) {
        Vec& one = total[r][p * kParts + part];
        Vec sum = fused(Dot::floats(sums[r][p], part), scale[p * kParts + part], base[p * kParts + part]);
        if constexpr (kLeast) sum = fused(minus, least[p * kParts + part], sum);
        one = fused(sum, same(scale_of_row), one);
      }
      row[r] += kWords + 2;
    }
  }
  PRELUDE_SPELL_OUT
  for (int r = 0; r < R; ++r) PRELUDE_SPELL_OUT
  for (int v = 0; v < P * kParts; ++v) store(&made[r][v * kLanes], total[r][v]);
}
