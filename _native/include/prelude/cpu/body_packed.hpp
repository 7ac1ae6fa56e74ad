// Products with packed weights. Included once per target, inside its namespace, after lanes_*.hpp, body_rows.hpp and
// dots_*.hpp. A packing has a struct, that of int8 in dots_*.hpp, with
//   Sums                      of 16 outputs and one row
//   start                     the first value of a row's sums: of integers a number, else zeros
//   Weight, weight            16 words of a weight; but for integers as the part of a row meets them
//   kFewRows                  rows for which weights are fetched into the second cache, at most
//   kParts                    but for integers: words of a row that meet a word of a weight, one after the other
//   Input, input(word)        a word of a row, for every output
//   step(sums, weight, input) adds their products
//   sums(values)              but for integers: the sums that `floats` has given
//   from(value), kNothing, as_they_are(words)   of a struct for few bits: sums that begin at the value, the value of
//                             none yet, and a weight of bytes that are not signed
//   floats(sums, part)        outputs [part * kLanes, (part + 1) * kLanes) as floats; of integers as they are
// and
//   fused(a, b, c)            a * b + c, rounded once on every target; summed(c, a, b), where c keeps its register
//   bytes(v, to)              the lowest byte of each lane
//   halves(words)             kLanes numbers of float16 as floats
//   of_bytes(bytes)           kLanes signed bytes as floats
//   open_halves<six>(words, two, at, low, high)   the low and the high halves of the bytes of kLanes words; `six`:
//                             with the two bits above them that bytes of `two` have from bit `at` and from bit
//                             `at` + 4 on
//   kPairSums                 sums of few bits are two of 16 bits for an output
//   of_pairs(words, part)     the lower (part 0) or upper bfloat16 of kLanes words as floats
//   kFloatRows, kFloatWide    rows, and times 16 outputs, whose sums of float32 are in registers at a time
//   kFloatWords               words of many rows that meet these outputs before the next words do
//   kFloatSteps               words of a row whose products are spelled out one after the other

inline constexpr int64_t kHalves = kGroup / kHalf;  // of a group

// Loops of constant length are spelled out by the compiler: else it keeps the sums in memory.
#if defined(__GNUC__) && !defined(__clang__)
#define PRELUDE_SPELL_OUT _Pragma("GCC unroll 12")
#else
#define PRELUDE_SPELL_OUT
#endif

// Lines of weights that are met next. If `few` rows meet them, they are fetched into the second cache: the nearest
// one waits for fewer lines at a time than memory brings.
struct Ahead {
  const char* at;
  int64_t lines;
  bool few;
  void fetch_line() {
    if (few)
      fetch_far(at);
    else
      fetch(at);
    at += 64;
  }
};

#include "prelude/cpu/body_int8.hpp"

// Of weights of few bits, which are not signed.
template <class Some, Packing kFew>
struct FewDot : Some {
  static constexpr Packing kPacking = kFew;
  static typename Some::Sums start(int32_t value) {
    return Some::from(kFew == Packing::q4_k ? Some::kNothing : value);
  }
  static typename Some::Weight weight(const uint32_t* words) { return Some::as_they_are(words); }
};

// Sums of float32.
struct F32Dot {
  static constexpr Packing kPacking = Packing::f32;
  static constexpr int kRows = kFloatRows, kWide = kFloatWide, kParts = 1, kFewRows = 2 * kRows;
  struct Sums {
    Vec vectors[kHalf / kLanes];
  };
  using Weight = Sums;
  using Input = Vec;
  // Vector i is `lanes(i)`.
  template <class Lanes>
  static Sums each(const Lanes& lanes) {
    Sums made;
    for (int i = 0; i < kHalf / kLanes; ++i) made.vectors[i] = lanes(i);
    return made;
  }
  static Sums start() {
    return each([&](int) { return zero(); });
  }
  static Sums sums(const float* values) {
    return each([&](int i) { return load(values + i * kLanes); });
  }
  static Weight weight(const uint32_t* words, int) { return sums(reinterpret_cast<const float*>(words)); }
  static Input input(uint32_t word) {
    float x;
    std::memcpy(&x, &word, 4);
    return same(x);
  }
  static void step(Sums& sums, const Weight& weight, Input input) {
    for (int i = 0; i < kHalf / kLanes; ++i) sums.vectors[i] = summed(sums.vectors[i], weight.vectors[i], input);
  }
  static Vec floats(const Sums& sums, int part) { return sums.vectors[part]; }
};

// Weights of bfloat16 in pairs, an even input in the lower half of a word; see Packing::widened.
struct WidenedDot : F32Dot {
  static constexpr Packing kPacking = Packing::widened;
  static constexpr int kParts = 2;
  static Weight weight(const uint32_t* words, int part) {
    return each([&](int i) { return of_pairs(words + i * kLanes, part); });
  }
};

// Weights of float16, the outputs of an input side by side; see Packing::f16.
struct F16Dot : F32Dot {
  static constexpr Packing kPacking = Packing::f16;
  static Weight weight(const uint32_t* words, int) {
    return each([&](int i) { return halves(words + i * (kLanes / 2)); });
  }
};
// Words of a group that a step reads.
template <class Dot>
inline constexpr int64_t kStep = Dot::kPacking == Packing::f16 ? kGroup / 2 : kGroup;

template <class Value>
inline const Value* row_of(const PackedArgs& a, int64_t row) {
  return static_cast<const Value*>(a.x) + row * a.x_stride;
}

inline uint32_t pair_of(uint16_t low, uint16_t high) { return low | static_cast<uint32_t>(high) << 16; }

template <class Value>
inline void copy_values(const Value* x, int64_t inputs, uint32_t* words, int64_t apart) {
  for (int64_t i = 0; i < inputs; ++i) {
    const float value = as_float(x[i]);
    std::memcpy(words + i * apart, &value, 4);
  }
}

template <class Value>
inline void copy_pairs(const Value* x, int64_t inputs, uint32_t* words, int64_t apart) {
  const auto half = [](Value value) {
    if constexpr (sizeof(Value) == 2)
      return value;
    else
      return as_bf16(value);
  };
  int64_t i = 0;
  for (; i + 2 <= inputs; i += 2) words[i / 2 * apart] = pair_of(half(x[i]), half(x[i + 1]));
  if (i < inputs) words[i / 2 * apart] = half(x[i]);
}

// Words [word, word + kLanes) of a row, bits in the place of floats: the row's own memory, or `room`.
template <bool kPairs, class Value>
inline const float* lanes_of(const Value* row, int64_t word, float* room) {
  if constexpr (!kPairs && sizeof(Value) == 4) {
    return row + word;
  } else if constexpr (!kPairs) {
    store(room, load(row + word));
  } else if constexpr (sizeof(Value) == 2) {
    std::memcpy(room, row + 2 * word, kLanes * 4);
  } else {
    uint16_t pairs[2 * kLanes];
    store(pairs, load(row + 2 * word));
    store(pairs + kLanes, load(row + 2 * word + kLanes));
    std::memcpy(room, pairs, kLanes * 4);
  }
  return room;
}

// At most four rows side by side, a value or a pair of values a word, word after word `apart` words apart. The other
// words of four are written over by the next word, and none from `end` words on is written.
template <bool kPairs, class Value>
inline void turn(const Value* const* rows, int count, int64_t inputs, uint32_t* to, int64_t apart, int64_t end) {
  const int64_t whole = kPairs ? inputs / 2 : inputs;
  alignas(64) float room[4][kLanes], square[4 * kLanes];
  const float* lanes[4];
  int64_t word = 0;
  for (; word + kLanes <= whole; word += kLanes) {
    for (int r = 0; r < 4; ++r) lanes[r] = r < count ? lanes_of<kPairs>(rows[r], word, room[r]) : lanes[0];
    if (apart == 1) {
      std::memcpy(to + word, lanes[0], kLanes * 4);
    } else if ((word + kLanes - 1) * apart + 4 <= end) {
      weave(lanes, reinterpret_cast<float*>(to + word * apart), apart);
    } else {
      weave(lanes, square, 4);
      for (int w = 0; w < kLanes; ++w)
        std::memcpy(to + (word + w) * apart, square + w * 4, static_cast<size_t>(count) * 4);
    }
  }
  const int64_t done = kPairs ? 2 * word : word;
  for (int r = 0; r < count; ++r) {
    if constexpr (kPairs)
      copy_pairs(rows[r] + done, inputs - done, to + word * apart + r, apart);
    else
      copy_values(rows[r] + done, inputs - done, to + word * apart + r, apart);
  }
}

// kLanes outputs of a weight, `stride` values apart, to a packed weight of pairs of bfloat16 or of float32; `to` is
// the first word of the first of them.
template <class Value>
inline void pack(const Value* weight, int64_t stride, int64_t inputs, uint32_t* to) {
  for (int first = 0; first < kLanes; first += 4) {
    const Value* rows[4];
    for (int r = 0; r < 4; ++r) rows[r] = weight + (first + r) * stride;
    turn<sizeof(Value) == 2, Value>(rows, 4, inputs, to + first, kGroup, std::numeric_limits<int64_t>::max());
  }
}

// kLanes outputs of a weight of float16; `to` is the first input of the first of them.
inline void pack_halves(const uint16_t* weight, int64_t stride, int64_t inputs, uint16_t* to) {
  alignas(64) float room[kLanes][kLanes], square[kLanes * kLanes];
  const float* lanes[kLanes];
  int64_t i = 0;
  for (; i + 2 * kLanes <= inputs; i += 2 * kLanes) {
    for (int r = 0; r < kLanes; ++r) lanes[r] = lanes_of<true>(weight + r * stride, i / 2, room[r]);
    transpose(lanes, 0, square);
    uint32_t pairs[kLanes * kLanes];
    std::memcpy(pairs, square, sizeof pairs);
    for (int w = 0; w < kLanes; ++w)
      for (int r = 0; r < kLanes; ++r) {
        to[(i + 2 * w) * kGroup + r] = static_cast<uint16_t>(pairs[w * kLanes + r]);
        to[(i + 2 * w + 1) * kGroup + r] = static_cast<uint16_t>(pairs[w * kLanes + r] >> 16);
      }
  }
  for (; i < inputs; ++i)
    for (int r = 0; r < kLanes; ++r) to[i * kGroup + r] = weight[r * stride + i];
}

// The rows of one block.
template <bool kPairs, class Value>
inline void interleave(const PackedArgs& a, int64_t first, int together, uint32_t* to) {
  const int64_t inputs = a.weight.inputs, end = row_words(inputs, a.weight.packing) * together;
  const Value* rows[4];
  // From the last four to the first, since fewer than four write over the first ones of the next word.
  for (int at = (together - 1) / 4 * 4; at >= 0; at -= 4) {
    for (int r = 0; r < 4; ++r) rows[r] = row_of<Value>(a, first + std::min(at + r, together - 1));
    turn<kPairs, Value>(rows, std::min(together - at, 4), inputs, to + at, together, end - at);
  }
  if (a.weight.packing == Packing::widened && inputs % 2)
    for (int r = 0; r < together; ++r) to[inputs * together + r] = 0;
}

template <class Value>
inline void prepare_block(const PackedArgs& a, int64_t first, int together, uint32_t* to) {
  if (a.weight.packing == Packing::bf16) return interleave<true, Value>(a, first, together, to);
  if (!quantizes(a.weight.packing)) return interleave<false, Value>(a, first, together, to);
  const int64_t inputs = a.weight.inputs, words = row_words(inputs, a.weight.packing);
  const auto quantize =
      a.weight.packing == Packing::q6_k ? quantize_row<kBlock / 2, Value> : quantize_row<kBlock, Value>;
  for (int r = 0; r < together; ++r) quantize(row_of<Value>(a, first + r), inputs, to + r * words);
}

inline void prepare(const PackedArgs& a, const PackedRows& rows, int64_t first, int64_t last) {
  const int64_t words = row_words(a.weight.inputs, a.weight.packing);
  for (int64_t block = first; block < last; ++block) {
    const int64_t row = rows.first_of(block);
    const auto together = static_cast<int>(rows.first_of(block + 1) - row);
    uint32_t* to = rows.words + row * words;
    if (a.x_type == Type::f32)
      prepare_block<float>(a, row, together, to);
    else
      prepare_block<uint16_t>(a, row, together, to);
  }
}

// Where finished sums go if they are those of whole vectors of float32; null: they are others.
struct Ends {
  float* at = nullptr;
  int64_t stride = 0;
  const float* bias = nullptr;
  bool adds = false;
  Vec base(int64_t output) const { return bias ? load(bias + output) : zero(); }
  void put(int64_t row, int64_t output, Vec sum, Vec base) const {
    float* to = at + row * stride + output;
    store(to, add(sum, adds ? add(load(to), base) : base));
  }
};

inline Ends ends_of(const PackedArgs& a, int64_t row, int64_t output, int64_t count) {
  if (a.out_type != Type::f32 || output + count > a.weight.outputs) return {};
  const float* bias = a.weight.bias ? a.weight.bias + output : nullptr;
  return {static_cast<float*>(a.out) + row * a.out_stride + output, a.out_stride, bias, a.adds};
}

// The sums of R rows from `first` on, `count` of each from `output` on, finished and written. Not inlined: each
// kernel would have a copy, more code than the processor's cache of instructions holds.
[[gnu::noinline]] inline void finish(const PackedArgs& a, int64_t first, int rows, int64_t output, const float* sums,
                                     int64_t count) {
  if (const Ends out = ends_of(a, first, output, count); out.at != nullptr) {
    for (int64_t i = 0; i < count; i += kLanes) {
      const Vec base = out.base(i);
      for (int r = 0; r < rows; ++r) out.put(r, i, load(sums + r * count + i), base);
    }
    return;
  }
  const int64_t last = std::min(a.weight.outputs, output + count);
  const float* bias = a.weight.bias ? a.weight.bias + output : nullptr;
  for (int r = 0; r < rows; ++r)
    for (int64_t i = 0; output + i < last; i += kLanes) {
      const int left = static_cast<int>(std::min<int64_t>(last - output - i, kLanes));
      const bool whole = left == kLanes;
      const int64_t at = (first + r) * a.out_stride + output + i;
      float* out = static_cast<float*>(a.out) + at;
      Vec base = zero();
      if (bias) base = whole ? load(bias + i) : load_some(bias + i, left);
      if (a.adds) base = add(whole ? load(out) : load_some(out, left), base);
      const Vec value = add(load(sums + r * count + i), base);
      if (a.out_type == Type::bf16) {
        float wide[kLanes];
        store(wide, value);
        narrow(wide, left, static_cast<uint16_t*>(a.out) + at);
      } else if (whole) {
        store(out, value);
      } else {
        store_some(out, value, left);
      }
    }
}

// `steps` words of the weights at `w` by those of R rows at `x`, onto the sums of the words before where it
// `continues`. Meanwhile the lines of `soon` are fetched, a few at a time: if more are on their
// way than memory brings, those that are near wait for them.
template <class Dot, int R, int P>
inline void sum_floats(const uint32_t* const* w, const uint32_t* x, int64_t steps, bool continues, Ahead soon,
                       Ends out, float (*made)[P * kHalf]) {
  typename Dot::Sums sums[R][P];
  PRELUDE_SPELL_OUT
  for (int r = 0; r < R; ++r) PRELUDE_SPELL_OUT
  for (int p = 0; p < P; ++p) sums[r][p] = continues ? Dot::sums(&made[r][p * kHalf]) : Dot::start();
  const auto step = [&](int64_t i) {
    PRELUDE_SPELL_OUT
    for (int part = 0; part < Dot::kParts; ++part) {
      typename Dot::Weight weight[P];
      PRELUDE_SPELL_OUT
      for (int p = 0; p < P; ++p) weight[p] = Dot::weight(w[p] + i * kStep<Dot>, part);
      PRELUDE_SPELL_OUT
      for (int r = 0; r < R; ++r) {
        const typename Dot::Input input = Dot::input(x[(i * Dot::kParts + part) * R + r]);
        PRELUDE_SPELL_OUT
        for (int p = 0; p < P; ++p) Dot::step(sums[r][p], weight[p], input);
      }
    }
  };
  int64_t i = 0;
  const int64_t turns = std::max<int64_t>(1, steps / kFloatSteps);
  if (R < 5) soon.lines = std::min(soon.lines, turns * kFloatSteps);
  int64_t each = soon.lines / turns + 1, more = soon.lines % turns;  // turns that fetch `each`, others one fewer
  for (; i + kFloatSteps <= steps; i += kFloatSteps) {
    if (more-- == 0) --each;
    for (int64_t line = 0; line < (R < 5 ? 0 : each); ++line) soon.fetch_line();
    PRELUDE_SPELL_OUT
    for (int s = 0; s < kFloatSteps; ++s) {
      if (R < 5 && s < each) soon.fetch_line();  // few rows: memory is always busy
      step(i + s);
    }
  }
  for (; i < steps; ++i) step(i);
  if (out.at != nullptr) {
    PRELUDE_SPELL_OUT
    for (int p = 0; p < P; ++p)
      for (int part = 0; part < kHalf / kLanes; ++part) {
        const int64_t i = p * kHalf + part * kLanes;
        const Vec base = out.base(i);
        PRELUDE_SPELL_OUT
        for (int r = 0; r < R; ++r) out.put(r, i, Dot::floats(sums[r][p], part), base);
      }
    return;
  }
  PRELUDE_SPELL_OUT
  for (int r = 0; r < R; ++r) PRELUDE_SPELL_OUT
  for (int p = 0; p < P; ++p)
    for (int part = 0; part < kHalf / kLanes; ++part)
      store(&made[r][p * kHalf + part * kLanes], Dot::floats(sums[r][p], part));
}

// R rows from `row` on and P halves of groups from `half` on, of a group that is opened in `room` where kOpened:
// steps [first, last) of all of them, of integers always all. The sums are in `made`, and are finished where the
// steps are the last ones.
template <class Dot, int R, int P, bool kOpened>
inline void multiply_block(const PackedArgs& a, const PackedRows& rows, int64_t row, int64_t half, int64_t first,
                           int64_t last, Ahead soon, float (*made)[P * kHalf], const float* room) {
  const int64_t of_group = group_words(a.weight.inputs, Dot::kPacking);
  const int64_t of_row = row_words(a.weight.inputs, Dot::kPacking);
  const uint32_t* w[P];
  for (int p = 0; p < P; ++p)
    w[p] = kOpened ? reinterpret_cast<const uint32_t*>(room) : a.weight.words + (half + p) / kHalves * of_group;
  const uint32_t* x = rows.words + row * of_row;
  bool done = true;
  if constexpr (quantizes(Dot::kPacking)) {
    int lanes[P];
    for (int p = 0; p < P; ++p) lanes[p] = (half + p) % kHalves * kHalf;
    constexpr bool kEight = Dot::kPacking == Packing::int8;
    constexpr Packing kFew = kEight ? Packing::q4_k : Dot::kPacking;
    using Bits = std::conditional_t<kEight, EightBits, std::conditional_t<kOpened, OpenedBits<kFew>, FewBits<kFew>>>;
    sum_integers<Dot, Bits, R, P>(w, lanes, x, of_row, soon, made);
  } else {
    done = last * Dot::kParts >= of_row;
    for (int p = 0; p < P; ++p) w[p] += ((half + p) % kHalves + first * kHalves) * (kStep<Dot> / kHalves);
    const Ends out = done ? ends_of(a, row, half * kHalf, P * kHalf) : Ends{};
    done = done && out.at == nullptr;
    sum_floats<Dot, R, P>(w, x + first * Dot::kParts * R, last - first, first > 0, soon, out, made);
  }
  if (done) finish(a, row, R, half * kHalf, made[0], P * kHalf);
}

// Each block of rows fetches a part of the weights that are met next: else memory would rest while the processor
// computes. Steps [first, last) of one group are followed by those of the next group; behind the last group before
// the half `end`, by the steps from `last` on of the group of the half `begin`; behind the last steps, by the first
// steps of the group at `end`.
template <class Dot, int64_t kGroups>
inline const char* ahead(const PackedArgs& a, int64_t half, int64_t begin, int64_t end, int64_t first, int64_t last,
                         int64_t steps) {
  int64_t group = half / kHalves + kGroups;
  if (group * kHalves >= end) {
    first = last < steps ? last : 0;
    if (first > 0) group = begin / kHalves;
  }
  const auto* words = reinterpret_cast<const char*>(a.weight.words) + first * kStep<Dot> * 4;
  return words + group * group_words(a.weight.inputs, Dot::kPacking) * 4;
}

// P halves at a time, then fewer. Where `rows` cuts the steps, the sums of all rows and outputs wait in `room`, so
// that the part of the rows that meets the weights stays in the cache.
template <class Dot, int R, int P, bool kOpened>
inline void multiply_halves(const PackedArgs& a, const PackedRows& rows, int64_t first_block, int64_t last_block,
                            int64_t half, int64_t last, float* room) {
  constexpr bool kFloats = !quantizes(Dot::kPacking);
  constexpr int64_t kGroups = P < kHalves ? 1 : P / kHalves, kBits = 20;
  int64_t steps = 0, each = 0, lines = group_words(a.weight.inputs, Dot::kPacking) / 16;
  if constexpr (kFloats) {
    steps = row_words(a.weight.inputs, Dot::kPacking) / Dot::kParts;
    each = (steps + rows.parts - 1) / rows.parts;
  }
  const int64_t whole = half + (last - half) / P * P;
  const int64_t first_row = rows.first_of(first_block), all = rows.first_of(last_block) - first_row;
  const bool few = all <= Dot::kFewRows;
  alignas(64) float once[R][P * kHalf];
  for (int64_t first = 0;; first += each) {
    const int64_t end = std::min(steps, first + each);
    if (kFloats) lines = (end - first) * kStep<Dot> / 16;
    const int64_t of_row = (kGroups * lines << kBits) / (kGroups * kHalves / P * all);
    for (int64_t at = half; at < whole; at += P) {
      const char* soon = ahead<Dot, kGroups>(a, at, half, whole, first, end, steps);
      const int64_t met = at % kHalves / P * all - first_row;
      for (int64_t block = first_block; block < last_block; ++block) {
        const int64_t row = rows.first_of(block);
        float* const waits = room + ((at - half) * all + (row - first_row) * P) * kHalf;
        auto* made = rows.parts > 1 ? reinterpret_cast<float (*)[P * kHalf]>(waits) : once;
        const auto meet = [&](auto size) {
          const int64_t from = (met + row) * of_row >> kBits, to = (met + row + size) * of_row >> kBits;
          multiply_block<Dot, size, P, kOpened>(a, rows, row, at, first, end, {soon + from * 64, to - from, few},
                                                made, room);
        };
        if (block < rows.longer)
          meet(std::integral_constant<int, R>{});
        else
          meet(std::integral_constant<int, std::max(1, R - 1)>{});
      }
    }
    if (end == steps) break;
  }
  if constexpr (P > 1) {
    if (whole < last) multiply_halves<Dot, R, P / 2, kOpened>(a, rows, first_block, last_block, whole, last, room);
  }
}

template <class Dot>
inline constexpr bool kOpens = Dot::kPacking == Packing::q4_k || Dot::kPacking == Packing::q6_k;

// A group of few bits, opened into `room`.
template <class Dot>
inline void open_group(const PackedArgs& a, int64_t group, float* room) {
  const uint32_t* words = a.weight.words + group * group_words(a.weight.inputs, Dot::kPacking);
  auto* opened = reinterpret_cast<FewBits<Dot::kPacking>*>(room);
  for (int64_t i = 0; i < blocks_of(a.weight.inputs, Dot::kPacking) * kHalves; ++i)
    opened[i].open(words, static_cast<int>(i % kHalves) * kHalf, i / kHalves);
}

template <class Dot, int R>
inline void multiply(const PackedArgs& a, const PackedRows& rows, int64_t first_block, int64_t last_block,
                     int64_t first, int64_t last, float* room) {
  constexpr int P = 2 * R <= Dot::kRows ? 2 * Dot::kWide : Dot::kWide;
  if constexpr (kOpens<Dot> && 2 * R > Dot::kRows)
    if (room != nullptr)
      return multiply_halves<Dot, R, P, true>(a, rows, first_block, last_block, first * kHalves, last * kHalves,
                                              room);
  multiply_halves<Dot, R, P, false>(a, rows, first_block, last_block, first * kHalves, last * kHalves, room);
}
#undef PRELUDE_SPELL_OUT

template <class Dot, int... R>
constexpr PackedKernels packed_table(const char* name, std::integer_sequence<int, R...>) {
  PackedKernels made{name,        Dot::kPacking,  Dot::kRows,  kLanes,  quantizes(Dot::kPacking) ? 0 : kFloatWords,
                     pack<float>, pack<uint16_t>, pack_halves, prepare, {multiply<Dot, R + 1>...}};
  if constexpr (kOpens<Dot>) made.open = open_group<Dot>;
  return made;
}
template <class Dot>
constexpr PackedKernels packed_table(const char* name) {
  return packed_table<Dot>(name, std::make_integer_sequence<int, Dot::kRows>{});
}
