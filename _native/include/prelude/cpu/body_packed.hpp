// Products with packed weights. Included once per target, inside its namespace, after lanes_*.hpp, body_rows.hpp and
// dots_*.hpp, which give for each packing a struct with
//   Sums                      of 16 outputs and one row
//   start                     the first value of a row's sums: of int8 a number, else zeros
//   Weight, weight            16 words of a weight; but for int8 as the part of a row meets them
//   kParts                    but for int8: words of a row that meet a word of a weight, one after the other
//   Input, input(word)        a word of a row, for every output
//   step(sums, weight, input) adds their products
//   floats(sums, part)        outputs [part * kLanes, (part + 1) * kLanes) as floats
//   scales(words)             of int8: kLanes numbers of float16 as floats
// and
//   fused(a, b, c)            a * b + c, rounded once on every target
//   bytes(v, to)              the lowest byte of each lane

inline constexpr int64_t kHalves = kGroup / kHalf;  // of a group
inline constexpr float kToInteger = 12582912.0f;    // 1.5 * 2^23: adding it rounds to an integer

// Loops of constant length are spelled out by the compiler: else it keeps the sums in memory.
#if defined(__GNUC__) && !defined(__clang__)
#define PRELUDE_SPELL_OUT _Pragma("GCC unroll 12")
#else
#define PRELUDE_SPELL_OUT
#endif

#include "prelude/cpu/body_int8.hpp"

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

template <class Value>
inline void prepare_row(const PackedArgs& a, int64_t row, uint32_t* words, int64_t apart) {
  const PackedWeight& w = a.weight;
  if (w.packing == Packing::int8)
    quantize_row(row_of<Value>(a, row), w.inputs, words, apart);
  else if (w.packing == Packing::bf16)
    copy_pairs(row_of<Value>(a, row), w.inputs, words, apart);
  else
    copy_values(row_of<Value>(a, row), w.inputs, words, apart);
  if (w.packing == Packing::widened && w.inputs % 2) words[w.inputs * apart] = 0;
}

inline void prepare(const PackedArgs& a, const PackedRows& rows, int64_t first, int64_t last) {
  const int64_t words = row_words(a.weight.inputs, a.weight.packing);
  for (int64_t block = first; block < last; ++block) {
    uint32_t* at = rows.words + block * words * rows.together;
    for (int r = 0; r < rows.together; ++r) {
      const int64_t row = block * rows.together + r;
      if (row >= a.rows) {
        for (int64_t i = 0; i < words; ++i) at[i * rows.together + r] = 0;
      } else if (a.x_type == Type::f32) {
        prepare_row<float>(a, row, at + r, rows.together);
      } else {
        prepare_row<uint16_t>(a, row, at + r, rows.together);
      }
    }
  }
}

// `count` sums of one row from `output` on, finished and written. Not inlined: each kernel would have a copy for each
// of its sums, more code than the processor's cache of instructions holds.
[[gnu::noinline]] inline void finish(const PackedArgs& a, int64_t row, int64_t output, const float* sums,
                                     int64_t count) {
  const int64_t last = std::min(a.weight.outputs, output + count);
  for (; output < last; output += kLanes, sums += kLanes) {
    const int left = static_cast<int>(std::min<int64_t>(last - output, kLanes));
    const bool whole = left == kLanes;
    float* out = static_cast<float*>(a.out) + row * a.out_stride + output;
    Vec base = zero();
    if (a.weight.bias) base = whole ? load(a.weight.bias + output) : load_some(a.weight.bias + output, left);
    if (a.adds) base = add(whole ? load(out) : load_some(out, left), base);
    const Vec value = add(load(sums), base);
    if (a.out_type == Type::bf16) {
      float wide[kLanes];
      store(wide, value);
      narrow(wide, left, static_cast<uint16_t*>(a.out) + row * a.out_stride + output);
    } else if (whole) {
      store(out, value);
    } else {
      store_some(out, value, left);
    }
  }
}

template <class Dot, int R, int P>
inline void sum_floats(const uint32_t* const* w, const uint32_t* x, int64_t inputs, float (*made)[P * kHalf]) {
  const int64_t words = row_words(inputs, Dot::kPacking) / Dot::kParts;
  typename Dot::Sums sums[R][P];
  PRELUDE_SPELL_OUT
  for (int r = 0; r < R; ++r) PRELUDE_SPELL_OUT
  for (int p = 0; p < P; ++p) sums[r][p] = Dot::start();
  for (int64_t i = 0; i < words; ++i) {
    PRELUDE_SPELL_OUT
    for (int part = 0; part < Dot::kParts; ++part) {
      typename Dot::Weight weight[P];
      PRELUDE_SPELL_OUT
      for (int p = 0; p < P; ++p) weight[p] = Dot::weight(w[p] + i * kGroup, part);
      PRELUDE_SPELL_OUT
      for (int r = 0; r < R; ++r) {
        const typename Dot::Input input = Dot::input(x[(i * Dot::kParts + part) * R + r]);
        PRELUDE_SPELL_OUT
        for (int p = 0; p < P; ++p) Dot::step(sums[r][p], weight[p], input);
      }
    }
  }
  PRELUDE_SPELL_OUT
  for (int r = 0; r < R; ++r) PRELUDE_SPELL_OUT
  for (int p = 0; p < P; ++p)
    for (int part = 0; part < kHalf / kLanes; ++part)
      store(&made[r][p * kHalf + part * kLanes], Dot::floats(sums[r][p], part));
}

// One block of R rows and P halves of groups from `half` on.
template <class Dot, int R, int P>
inline void multiply_block(const PackedArgs& a, const PackedRows& rows, int64_t block, int64_t half) {
  const int64_t of_group = group_words(a.weight.inputs, Dot::kPacking);
  const uint32_t* w[P];
  for (int p = 0; p < P; ++p) w[p] = a.weight.words + (half + p) / kHalves * of_group + (half + p) % kHalves * kHalf;
  const uint32_t* x = rows.words + block * row_words(a.weight.inputs, Dot::kPacking) * R;
  alignas(64) float made[R][P * kHalf];
  if constexpr (Dot::kPacking == Packing::int8) {
    const uint32_t* scales[P];  // of an output half a word
    for (int p = 0; p < P; ++p) scales[p] = w[p] + kBlockWords * kGroup - (half + p) % kHalves * (kHalf / 2);
    sum_int8<Dot, R, P>(w, scales, x, a.weight.inputs, made);
  } else {
    sum_floats<Dot, R, P>(w, x, a.weight.inputs, made);
  }
  const int64_t last = std::min<int64_t>(a.rows, (block + 1) * R);
  for (int64_t row = block * R; row < last; ++row) finish(a, row, half * kHalf, made[row - block * R], P * kHalf);
}

// P halves at a time, then fewer.
template <class Dot, int R, int P>
inline void multiply_halves(const PackedArgs& a, const PackedRows& rows, int64_t first_block, int64_t last_block,
                            int64_t half, int64_t last) {
  for (; half + P <= last; half += P)
    for (int64_t block = first_block; block < last_block; ++block) multiply_block<Dot, R, P>(a, rows, block, half);
  if constexpr (P > 1) {
    if (half < last) multiply_halves<Dot, R, P / 2>(a, rows, first_block, last_block, half, last);
  }
}

template <class Dot, int R>
inline void multiply(const PackedArgs& a, const PackedRows& rows, int64_t first_block, int64_t last_block,
                     int64_t first, int64_t last) {
  constexpr int P = 2 * R <= Dot::kRows ? 2 * Dot::kWide : Dot::kWide;
  multiply_halves<Dot, R, P>(a, rows, first_block, last_block, first * kHalves, last * kHalves);
}
#undef PRELUDE_SPELL_OUT

template <class Dot, int... R>
constexpr PackedKernels packed_table(const char* name, std::integer_sequence<int, R...>) {
  return {name, Dot::kPacking, Dot::kRows, prepare, {multiply<Dot, R + 1>...}};
}
template <class Dot>
constexpr PackedKernels packed_table(const char* name) {
  return packed_table<Dot>(name, std::make_integer_sequence<int, Dot::kRows>{});
}
