// Products of a few rows with a weight. Included once per target, inside its namespace, after body_rows.hpp.
//
// Weights are read where they lie, [outputs, inputs] as in the checkpoint, and come from far away once for all rows.
// A sum runs over the inputs in one vector from first to last, which is then folded: its bits depend on the row and
// the weight, not on the other rows.

constexpr int kOutputs = 4;  // at a time

inline void keep(const MatmulArgs& a, int64_t row, int64_t output, const float* sums, int count) {
  const int64_t at = row * a.out_stride + output;
  if (a.out_type == Type::bf16) {
    narrow(sums, count, static_cast<uint16_t*>(a.out) + at);
    return;
  }
  float* out = static_cast<float*>(a.out) + at;
  for (int o = 0; o < count; ++o) out[o] = a.adds ? out[o] + sums[o] : sums[o];
}

// Loops of constant length are spelled out by the compiler: else it keeps the sums in memory.
#if defined(__GNUC__) && !defined(__clang__)
#define PRELUDE_SPELL_OUT _Pragma("GCC unroll 4")
#else
#define PRELUDE_SPELL_OUT
#endif

// Rows [row, row + R) and outputs [output, output + O); `x` are the inputs as floats, `width` apart.
template <int R, int O, class Weight>
inline void matmul_block(const MatmulArgs& a, const float* x, int64_t row, int64_t output) {
  const int64_t width = a.width;
  const Weight* w = static_cast<const Weight*>(a.weight) + output * width;
  x += row * width;
  Vec parts[R][O];
  PRELUDE_SPELL_OUT
  for (int r = 0; r < R; ++r) {
    PRELUDE_SPELL_OUT
    for (int o = 0; o < O; ++o) parts[r][o] = zero();
  }
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    Vec inputs[R];
    PRELUDE_SPELL_OUT
    for (int r = 0; r < R; ++r) inputs[r] = load(x + r * width + i);
    PRELUDE_SPELL_OUT
    for (int o = 0; o < O; ++o) {
      fetch(w + (o + O) * width + i);
      const Vec weight = in_register(load(w + o * width + i));
      PRELUDE_SPELL_OUT
      for (int r = 0; r < R; ++r) parts[r][o] = fma(inputs[r], weight, parts[r][o]);
    }
  }
  if (i < width) {
    const int left = static_cast<int>(width - i);
    PRELUDE_SPELL_OUT
    for (int o = 0; o < O; ++o) {
      float last[kLanes] = {};
      for (int l = 0; l < left; ++l) last[l] = as_float(w[o * width + i + l]);
      const Vec weight = load(last);
      PRELUDE_SPELL_OUT
      for (int r = 0; r < R; ++r) parts[r][o] = fma(load_some(x + r * width + i, left), weight, parts[r][o]);
    }
  }
  PRELUDE_SPELL_OUT
  for (int r = 0; r < R; ++r) {
    float sums[O];
    if constexpr (O == kOutputs) {
      four_sums(parts[r], sums);
    } else {
      for (int o = 0; o < O; ++o) sums[o] = sum(parts[r][o]);
    }
    keep(a, row + r, output, sums, O);
  }
}
#undef PRELUDE_SPELL_OUT

// R rows at a time, then those that are left.
template <int R, int O, class Weight>
inline void matmul_rows(const MatmulArgs& a, const float* x, int64_t row, int64_t output) {
  for (; row + R <= a.rows; row += R) matmul_block<R, O, Weight>(a, x, row, output);
  if constexpr (R > 1) {
    if (row < a.rows) matmul_rows<R - 1, O, Weight>(a, x, row, output);
  }
}

template <class Weight>
inline void matmul_outputs(const MatmulArgs& a, const float* x, int64_t first, int64_t last) {
  int64_t output = first;
  for (; output + kOutputs <= last; output += kOutputs) matmul_rows<kMatmulRows, kOutputs, Weight>(a, x, 0, output);
  for (; output < last; ++output) matmul_rows<1, 1, Weight>(a, x, 0, output);
}

// Outputs [first, last) of all rows; `x` are the inputs as floats, `width` apart.
inline void matmul(const MatmulArgs& a, const float* x, int64_t first, int64_t last) {
  if (a.type == Type::f32) return matmul_outputs<float>(a, x, first, last);
  matmul_outputs<uint16_t>(a, x, first, last);
}
