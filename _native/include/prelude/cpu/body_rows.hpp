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

inline float as_float(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float x;
  std::memcpy(&x, &wide, 4);
  return x;
}
inline float as_float(float x) { return x; }
// Ties to even; NaN stays NaN.
inline uint16_t as_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>(x == x ? rounded : ((bits >> 16) | 0x40u));
}
inline void widen(const uint16_t* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = as_float(from[i]);
}
inline void narrow(const float* from, int64_t count, uint16_t* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = as_bf16(from[i]);
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

inline void turn_head(float* head, const float* turns, int64_t width) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) store(head + i, turn(load(head + i), load(turns + i)));
  if (i < width) {
    const int left = static_cast<int>(width - i);
    store_some(head + i, turn(load_some(head + i, left), load_some(turns + i, left)), left);
  }
}

inline void norm_rotate(const RotateArgs& a, int64_t first, int64_t last, float* room) {
  const int64_t values = a.heads * a.width;
  for (int64_t row = first; row < last; ++row) {
    const float* turns = a.turns + a.positions[row] * a.width;
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
      turn_head(y + at, turns, a.width);
    }
    if (a.type == Type::bf16) narrow(y, values, static_cast<uint16_t*>(a.out) + row * a.out_stride);
  }
}

// gate / (1 + exp(-gate)) * up. Where exp stops growing the quotient is below 1e-35: 0.
inline Vec silu_times(Vec gate, Vec up) {
  const Vec negative = fnma(gate, same(1.0f), zero());
  const Vec silu = div(gate, add(same(1.0f), exp_of(negative)));
  return mul(zero_where_below(silu, gate, -87.3f), up);
}

inline void gate_row(float* gate, const float* up, int64_t inner) {
  int64_t i = 0;
  for (; i + kLanes <= inner; i += kLanes) store(gate + i, silu_times(load(gate + i), load(up + i)));
  if (i < inner) {
    const int left = static_cast<int>(inner - i);
    store_some(gate + i, silu_times(load_some(gate + i, left), load_some(up + i, left)), left);
  }
}

inline void silu_gate(const GateArgs& a, int64_t first, int64_t last, float* room) {
  for (int64_t row = first; row < last; ++row) {
    if (a.type == Type::f32) {
      float* gate = static_cast<float*>(a.rows) + row * a.stride;
      gate_row(gate, gate + a.inner, a.inner);
    } else {
      uint16_t* gate = static_cast<uint16_t*>(a.rows) + row * a.stride;
      widen(gate, 2 * a.inner, room);
      gate_row(room, room + a.inner, a.inner);
      narrow(room, a.inner, gate);
    }
  }
}
