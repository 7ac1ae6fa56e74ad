// Norms, rotations and gates over rows. Included once per target, inside its namespace.

// exp to within one unit in the last place over [-87.3, 88]; exactly 0 below, that of 88 above. NaN stays.
// The range is reduced by ln 2 in two parts; the polynomial is that of Cephes' expf.
inline Vec exp_of(Vec x) {
  const Vec inside = min(same(88.0f), max(same(-87.3f), x));
  const Vec n = nearest(mul(inside, same(1.44269504088896341f)));
  const Vec r = fnma(n, same(-2.12194440e-4f), fnma(n, same(0.693359375f), inside));
  Vec p = same(1.9875691500e-4f);
  p = fma(p, r, same(1.3981999507e-3f));
  p = fma(p, r, same(8.3334519073e-3f));
  p = fma(p, r, same(4.1665795894e-2f));
  p = fma(p, r, same(1.6666665459e-1f));
  p = fma(p, r, same(5.0000001201e-1f));
  p = add(fma(p, mul(r, r), r), same(1.0f));
  return zero_where_below(times_power_of_two(p, n), x, -87.3f);
}

// out[d * kLanes + l] = rows[l][at + d], d and l below kLanes.
inline void transpose(const float* const* rows, int64_t at, float* out) {
  for (int first = 0; first < kLanes; first += 4) {
    const float* four[4];
    for (int r = 0; r < 4; ++r) four[r] = rows[first + r] + at;
    weave(four, out + first, kLanes);
  }
}

inline void widen(const uint16_t* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
  for (; i < count; ++i) to[i] = as_float(from[i]);
}
inline void narrow(const float* from, int64_t count, uint16_t* to) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
  for (; i < count; ++i) to[i] = as_bf16(from[i]);
}

// The largest of `count` values, and the sum of exp(value - largest), in eight sums of float64.
inline void exp_sum(const float* x, int64_t count, float* most, double* total) {
  constexpr int kSums = 8, kSome = 512;
  Vec highest = same(-INFINITY);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) highest = max(highest, load(x + i));
  *most = largest(highest);
  for (; i < count; ++i)
    if (x[i] > *most) *most = x[i];
  const Vec below = same(-*most);
  float values[kSome];
  double sums[kSums] = {};
  for (int64_t first = 0; first < count; first += kSome) {
    const int64_t some = count - first < kSome ? count - first : kSome;
    for (int64_t j = 0; j < some; j += kLanes) {
      const int64_t left = some - j;
      const Vec v = left < kLanes ? load_some(x + first + j, static_cast<int>(left)) : load(x + first + j);
      store(values + j, exp_of(add(v, below)));
    }
    for (int64_t j = some; j % kSums != 0; ++j) values[j] = 0.0f;
    for (int64_t j = 0; j < some; j += kSums)
      for (int s = 0; s < kSums; ++s) sums[s] += static_cast<double>(values[j + s]);
  }
  *total = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

inline float inverse_rms(const float* x, int64_t width, float eps) {
  Vec even = zero(), odd = zero();
  int64_t i = 0;
  for (; i + 2 * kLanes <= width; i += 2 * kLanes) {
    const Vec a = load(x + i), b = load(x + i + kLanes);
    even = fma(a, a, even);
    odd = fma(b, b, odd);
  }
  for (; i < width; i += kLanes) {
    const Vec a = load_some(x + i, static_cast<int>(width - i < kLanes ? width - i : kLanes));
    even = fma(a, a, even);
  }
  return 1.0f / std::sqrt(sum(add(even, odd)) / static_cast<float>(width) + eps);
}

inline void scaled(const float* x, float factor, const float* gain, int64_t width, float* out) {
  const Vec f = same(factor);
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    const Vec y = mul(load(x + i), f);
    store(out + i, gain ? mul(y, load(gain + i)) : y);
  }
  if (i < width) {
    const int left = static_cast<int>(width - i);
    const Vec y = mul(load_some(x + i, left), f);
    store_some(out + i, gain ? mul(y, load_some(gain + i, left)) : y, left);
  }
}

// `room`: `width` floats of the caller's, for rows of another type.
inline void rms_norm(const NormArgs& a, int64_t first, int64_t last, float* room) {
  for (int64_t row = first; row < last; ++row) {
    const float* x = a.x + row * a.x_stride;
    const float factor = inverse_rms(x, a.width, a.eps);
    if (a.out_type == Type::f32) {
      scaled(x, factor, a.gain, a.width, static_cast<float*>(a.out) + row * a.out_stride);
    } else {
      scaled(x, factor, a.gain, a.width, room);
      narrow(room, a.width, static_cast<uint16_t*>(a.out) + row * a.out_stride);
    }
  }
}

inline float mean_of(const float* x, int64_t width) {
  Vec even = zero(), odd = zero();
  int64_t i = 0;
  for (; i + 2 * kLanes <= width; i += 2 * kLanes) {
    even = add(even, load(x + i));
    odd = add(odd, load(x + i + kLanes));
  }
  for (; i < width; i += kLanes)
    even = add(even, load_some(x + i, static_cast<int>(width - i < kLanes ? width - i : kLanes)));
  return sum(add(even, odd)) / static_cast<float>(width);
}

// 1 / sqrt(variance + eps). Lanes behind the last value are those of `mean`, which add nothing.
inline float inverse_deviation(const float* x, float mean, int64_t width, float eps) {
  const Vec centre = same(mean);
  Vec even = zero(), odd = zero();
  int64_t i = 0;
  for (; i + 2 * kLanes <= width; i += 2 * kLanes) {
    const Vec a = fnma(centre, same(1.0f), load(x + i)), b = fnma(centre, same(1.0f), load(x + i + kLanes));
    even = fma(a, a, even);
    odd = fma(b, b, odd);
  }
  for (; i < width; i += kLanes) {
    const int left = static_cast<int>(width - i < kLanes ? width - i : kLanes);
    float last[kLanes];
    store(last, centre);
    for (int l = 0; l < left; ++l) last[l] = x[i + l];
    const Vec a = fnma(centre, same(1.0f), load(last));
    even = fma(a, a, even);
  }
  return 1.0f / std::sqrt(sum(add(even, odd)) / static_cast<float>(width) + eps);
}

inline void layer_norm_row(const float* x, const NormArgs& a, float* out) {
  const float mean = mean_of(x, a.width);
  const Vec factor = same(inverse_deviation(x, mean, a.width, a.eps)), centre = same(mean), one = same(1.0f);
  for (int64_t i = 0; i < a.width; i += kLanes) {
    const int left = static_cast<int>(a.width - i < kLanes ? a.width - i : kLanes);
    const bool whole = left == kLanes;
    Vec y = mul(fnma(centre, one, whole ? load(x + i) : load_some(x + i, left)), factor);
    if (a.gain) y = mul(y, whole ? load(a.gain + i) : load_some(a.gain + i, left));
    if (a.bias) y = add(y, whole ? load(a.bias + i) : load_some(a.bias + i, left));
    if (whole)
      store(out + i, y);
    else
      store_some(out + i, y, left);
  }
}

// As rms_norm, of x minus its mean, and with a bias.
inline void layer_norm(const NormArgs& a, int64_t first, int64_t last, float* room) {
  for (int64_t row = first; row < last; ++row) {
    const float* x = a.x + row * a.x_stride;
    if (a.out_type == Type::f32) {
      layer_norm_row(x, a, static_cast<float*>(a.out) + row * a.out_stride);
    } else {
      layer_norm_row(x, a, room);
      narrow(room, a.width, static_cast<uint16_t*>(a.out) + row * a.out_stride);
    }
  }
}

inline void rotate_head(float* head, const float* rope_table, int64_t width) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) store(head + i, rotate_pairs(load(head + i), load(rope_table + i)));
  if (i < width) {
    const int left = static_cast<int>(width - i);
    store_some(head + i, rotate_pairs(load_some(head + i, left), load_some(rope_table + i, left)), left);
  }
}

inline void norm_rotate(const RotateArgs& a, int64_t first, int64_t last, float* room) {
  const int64_t values = a.heads * a.width;
  for (int64_t row = first; row < last; ++row) {
    const float* rope_table = a.rope_table + a.positions[row] * a.width;
    const float* x;
    float* y;
    if (a.type == Type::f32) {
      x = static_cast<const float*>(a.in) + row * a.in_stride;
      y = static_cast<float*>(a.out) + row * a.out_stride;
    } else {
      widen(static_cast<const uint16_t*>(a.in) + row * a.in_stride, values, room);
      x = y = room;
    }
    for (int64_t at = 0; at < values; at += a.width) {
      const float factor = a.gain ? inverse_rms(x + at, a.width, a.eps) : 1.0f;
      scaled(x + at, factor, a.gain ? a.gain + at : nullptr, a.width, y + at);
      rotate_head(y + at, rope_table, a.width);
    }
    if (a.type == Type::bf16) narrow(y, values, static_cast<uint16_t*>(a.out) + row * a.out_stride);
  }
}

// x / (1 + exp(-x)). Where exp stops growing the quotient is below 1e-35: 0.
struct Silu {
  static Vec of(Vec x) {
    const Vec negative = fnma(x, same(1.0f), zero());
    return zero_where_below(div(x, add(same(1.0f), exp_of(negative))), x, -87.3f);
  }
};

// x Phi(x) = max(x, 0) - |x| Phi(-|x|), to 1e-7 of |x|. Phi(-t) = erfc(t / sqrt 2) / 2, by formula 7.1.26 of
// Abramowitz and Stegun.
struct Gelu {
  static Vec of(Vec x) {
    const Vec size = max(fnma(x, same(1.0f), zero()), x);
    const Vec u = mul(size, same(0.70710678118654752f));
    const Vec t = div(same(1.0f), fma(u, same(0.3275911f), same(1.0f)));
    Vec p = same(0.5f * 1.061405429f);
    p = fma(p, t, same(0.5f * -1.453152027f));
    p = fma(p, t, same(0.5f * 1.421413741f));
    p = fma(p, t, same(0.5f * -0.284496736f));
    p = fma(p, t, same(0.5f * 0.254829592f));
    const Vec tail = mul(mul(p, t), exp_of(fnma(u, u, zero())));
    return fnma(size, tail, max(zero(), x));
  }
};

// x (1 + tanh z) / 2 = x / (1 + exp(-2 z)), z = sqrt(2 / pi) (x + 0.044715 x^3)
struct GeluTanh {
  static Vec of(Vec x) {
    const Vec inside = mul(x, fma(mul(x, x), same(0.044715f), same(1.0f)));
    const Vec twice = mul(inside, same(-1.5957691216057308f));
    return zero_where_below(div(x, add(same(1.0f), exp_of(twice))), x, -13.0f);
  }
};

// cap * tanh(x / cap) = cap - 2 cap / (1 + exp(2 x / cap)) of `count` values, in place; whole vectors are written.
inline void soft_cap(float* x, int64_t count, float cap) {
  const Vec one = same(1.0f), most = same(cap), twice = same(2.0f * cap), by = same(2.0f / cap);
  for (int64_t i = 0; i < count; i += kLanes)
    store(x + i, fnma(div(twice, add(one, exp_of(mul(load(x + i), by)))), one, most));
}

struct Relu {
  static Vec of(Vec x) { return max(zero(), x); }
};

template <class F>
inline void activate_row(float* x, const float* factor, int64_t inner) {
  int64_t i = 0;
  for (; i + kLanes <= inner; i += kLanes) {
    const Vec y = F::of(load(x + i));
    store(x + i, factor ? mul(y, load(factor + i)) : y);
  }
  if (i < inner) {
    const int left = static_cast<int>(inner - i);
    const Vec y = F::of(load_some(x + i, left));
    store_some(x + i, factor ? mul(y, load_some(factor + i, left)) : y, left);
  }
}

template <class F>
inline void activate_rows(const ActivateArgs& a, int64_t first, int64_t last, float* room) {
  const int64_t values = a.gated ? 2 * a.inner : a.inner;
  for (int64_t row = first; row < last; ++row) {
    if (a.type == Type::f32) {
      float* x = static_cast<float*>(a.rows) + row * a.stride;
      activate_row<F>(x, a.gated ? x + a.inner : nullptr, a.inner);
    } else {
      uint16_t* x = static_cast<uint16_t*>(a.rows) + row * a.stride;
      widen(x, values, room);
      activate_row<F>(room, a.gated ? room + a.inner : nullptr, a.inner);
      narrow(room, a.inner, x);
    }
  }
}

inline void activate(const ActivateArgs& a, int64_t first, int64_t last, float* room) {
  switch (a.kind) {
    case Activation::silu:
      return activate_rows<Silu>(a, first, last, room);
    case Activation::gelu:
      return activate_rows<Gelu>(a, first, last, room);
    case Activation::gelu_tanh:
      return activate_rows<GeluTanh>(a, first, last, room);
    case Activation::relu:
      return activate_rows<Relu>(a, first, last, room);
  }
}
