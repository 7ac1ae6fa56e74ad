// Convolutions, the gated delta rule and gates over rows. Included once per target, inside its namespace, after
// body_rows.hpp.

constexpr int kBlocksAtOnce = kLanes / 4;  // of a state: so many sums and their operands fit in the registers

struct Sigmoid {
  static Vec of(Vec x) {
    const Vec one = same(1.0f);
    return div(one, add(one, exp_of(fnma(x, one, zero()))));
  }
};

inline Vec load_upto(const float* p, int64_t left) {
  return left >= kLanes ? load(p) : load_some(p, static_cast<int>(left > 0 ? left : 0));
}
inline void store_upto(float* p, Vec v, int64_t left) {
  if (left >= kLanes) {
    store(p, v);
  } else if (left > 0) {
    store_some(p, v, static_cast<int>(left));
  }
}

// `inputs`: the kernel's inputs from the oldest to the token's own; null ones are 0.
inline void convolve_row(const ConvolveArgs& a, const float* const* inputs, const float* factor, float* out) {
  for (int64_t i = 0; i < a.channels; i += kLanes) {
    const int64_t left = a.channels - i;
    Vec y = a.bias ? load_upto(a.bias + i, left) : zero();
    for (int64_t j = 0; j < a.kernel; ++j)
      if (inputs[j]) y = fma(load_upto(inputs[j] + i, left), load_upto(a.weight + j * a.channels + i, left), y);
    if (a.silu) y = Silu::of(y);
    if (factor) y = mul(y, load_upto(factor + i, left));
    store_upto(out + i, y, left);
  }
}

// The rows that a token's convolution reads, found once a row. `room` holds kernel + 2 rows.
struct Inputs {
  const ConvolveArgs& a;
  const Segments& s;
  float* room;
  int64_t segment = 0;
  const float* found[kMostTaps];

  Inputs(const ConvolveArgs& args, const Segments& segments, float* given, int64_t first)
      : a(args), s(segments), room(given) {
    while (s.starts[segment + 1] <= first) ++segment;
  }
  const float* row_of(const void* from, int64_t row, float* place) const {
    if (a.type == Type::f32) return static_cast<const float*>(from) + row * a.x_stride;
    widen(static_cast<const uint16_t*>(from) + row * a.x_stride, a.channels, place);
    return place;
  }
  const float* const* of(int64_t row) {
    while (s.starts[segment + 1] <= row) ++segment;
    const int64_t inside = row - s.starts[segment];
    for (int64_t j = 0; j < a.kernel; ++j) {
      const int64_t back = a.kernel - 1 - j;  // tokens before this one
      float* place = room + j * a.channels;
      if (back <= inside) {
        found[j] = row_of(a.x, row - back, place);
        continue;
      }
      const Input input = input_at(s, segment, s.window - (back - inside));
      found[j] = nullptr;
      if (input.row >= 0) found[j] = row_of(a.x, input.row, place);
      if (input.entry >= 0) found[j] = a.windows + input.entry * a.state_stride + input.place * a.channels;
    }
    return found;
  }
};

inline void convolve(const ConvolveArgs& a, const Segments& s, int64_t first, int64_t last, float* room) {
  Inputs inputs(a, s, room, first);
  float* made = room + (a.kernel + 1) * a.channels;
  for (int64_t row = first; row < last; ++row) {
    const float* factor = a.factor ? inputs.row_of(a.factor, row, room + a.kernel * a.channels) : nullptr;
    if (a.out_type == Type::f32) {
      convolve_row(a, inputs.of(row), factor, static_cast<float*>(a.out) + row * a.out_stride);
    } else {
      convolve_row(a, inputs.of(row), factor, made);
      narrow(made, a.channels, static_cast<uint16_t*>(a.out) + row * a.out_stride);
    }
  }
}

// log(1 + exp(x)); x itself where the difference is below its last bit.
inline float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

inline void delta_inputs(const DeltaInputArgs& a, const Segments& s, int64_t first, int64_t last, float* room) {
  const DeltaShape& shape = a.shape;
  const int64_t width = shape.key_width, heads = shape.value_heads;
  const float root = 1.0f / std::sqrt(static_cast<float>(width)), eps = 1e-6f / static_cast<float>(width);
  Inputs inputs(a.conv, s, room, first);
  for (int64_t row = first; row < last; ++row) {
    float* out = static_cast<float*>(a.conv.out) + row * a.conv.out_stride;
    convolve_row(a.conv, inputs.of(row), nullptr, out);
    for (int64_t head = 0; head < 2 * shape.key_heads; ++head) {
      float* x = out + head * width;
      const float factor = inverse_rms(x, width, eps) * root;
      scaled(x, head < shape.key_heads ? factor * root : factor, nullptr, width, x);
    }
    float* decay = out + shape.decays();
    for (int64_t head = 0; head < heads; ++head) {
      float b, rise;
      if (a.conv.type == Type::f32) {
        const float* gates = static_cast<const float*>(a.gates) + row * a.conv.x_stride;
        b = gates[head], rise = gates[heads + head];
      } else {
        const uint16_t* gates = static_cast<const uint16_t*>(a.gates) + row * a.conv.x_stride;
        b = as_float(gates[head]), rise = as_float(gates[heads + head]);
      }
      decay[head] = std::exp(-a.rate[head] * softplus(rise + a.offset[head]));
      decay[heads + head] = 1.0f / (1.0f + std::exp(-b));
    }
  }
}

inline float dot(const float* a, const float* b, int64_t width) {
  Vec y = zero();
  for (int64_t i = 0; i < width; i += kLanes) y = fma(load_upto(a + i, width - i), load_upto(b + i, width - i), y);
  return sum(y);
}

// One token on N blocks of columns of a state. With q^T S taken of the old S:
//     q^T (decay S + k d) = decay q^T S + (q . k) d
template <int N>
inline void delta_token(const DeltaArgs& a, float* row, int64_t head, int64_t block, float* state) {
  constexpr int kVectors = static_cast<int>(kStateColumns) / kLanes;
  const DeltaShape& shape = a.shape;
  const int64_t width = shape.key_width, apart = width * kStateColumns;
  const int64_t key_head = head / (shape.value_heads / shape.key_heads);
  const float* q = row + key_head * width;
  const float* k = row + shape.keys() + key_head * width;
  float* v = row + 2 * shape.keys() + head * shape.value_width;
  const Vec decay = same(row[shape.decays() + head]), beta = same(row[shape.decays() + shape.value_heads + head]);
  const Vec meet = same(dot(q, k, width));
  Vec seen[N * kVectors], read[N * kVectors];
  for (int n = 0; n < N * kVectors; ++n) seen[n] = read[n] = zero();
  for (int64_t i = 0; i < width; ++i) {
    const Vec ki = same(k[i]), qi = same(q[i]);
    for (int n = 0; n < N * kVectors; ++n) {
      const Vec s = load(state + n / kVectors * apart + i * kStateColumns + n % kVectors * kLanes);
      seen[n] = fma(s, ki, seen[n]);
      read[n] = fma(s, qi, read[n]);
    }
  }
  for (int n = 0; n < N * kVectors; ++n) {
    const int64_t column = block * kStateColumns + n * kLanes, left = shape.value_width - column;
    const Vec change = mul(fnma(decay, seen[n], load_upto(v + column, left)), beta);
    store_upto(v + column, fma(meet, change, mul(decay, read[n])), left);
    seen[n] = change;
  }
  for (int64_t i = 0; i < width; ++i) {
    const Vec ki = same(k[i]);
    for (int n = 0; n < N * kVectors; ++n) {
      float* at = state + n / kVectors * apart + i * kStateColumns + n % kVectors * kLanes;
      store(at, fma(seen[n], ki, mul(decay, load(at))));
    }
  }
}

template <int N>
inline void delta_rows(const DeltaArgs& a, int64_t first, int64_t last, int64_t head, int64_t block, float* state) {
  for (int64_t row = first; row < last; ++row) delta_token<N>(a, a.rows + row * a.stride, head, block, state);
}

// Blocks [block, block + count) of one head of one tree, whose segments are `members`. `kept` says in which part of
// `room` a segment's state is worked on where it has no entry: part 0 is for those without children.
inline void delta(const DeltaArgs& a, const Segments& s, const int32_t* members, int64_t num_members,
                  const int32_t* kept, int64_t head, int64_t block, int count, float* room) {
  const int64_t floats = a.shape.key_width * kStateColumns;
  const int64_t offset = (head * state_blocks(a.shape) + block) * floats;
  const auto in_entry = [&](int32_t entry) { return a.states + entry * a.state_stride + offset; };
  const auto state_of = [&](int32_t segment) {
    return s.store[segment] >= 0 ? in_entry(s.store[segment]) : room + kept[segment] * count * floats;
  };
  for (int64_t i = 0; i < num_members; ++i) {
    const int32_t segment = members[i], parent = s.parents[segment];
    float* state = state_of(segment);
    const float* from = parent >= 0 ? state_of(parent) : s.load[segment] >= 0 ? in_entry(s.load[segment]) : nullptr;
    const size_t bytes = static_cast<size_t>(count * floats) * sizeof(float);
    if (from == nullptr) {
      std::memset(state, 0, bytes);
    } else if (from != state) {
      std::memcpy(state, from, bytes);
    }
    const int64_t first = s.starts[segment], last = s.starts[segment + 1];
    if (count == kBlocksAtOnce) {
      delta_rows<kBlocksAtOnce>(a, first, last, head, block, state);
    } else {
      for (int n = 0; n < count; ++n) delta_rows<1>(a, first, last, head, block + n, state + n * floats);
    }
  }
}

template <class F>
inline void gate_row(const GateArgs& a, const float* x, const float* gate, float* out) {
  for (int64_t head = 0; head < a.heads; ++head) {
    const int64_t at = head * a.width;
    const Vec factor = same(a.gain ? inverse_rms(x + at, a.width, a.eps) : 1.0f);
    for (int64_t i = 0; i < a.width; i += kLanes) {
      const int64_t left = a.width - i;
      Vec y = load_upto(x + at + i, left);
      if (a.gain) y = mul(mul(y, factor), load_upto(a.gain + i, left));
      store_upto(out + at + i, mul(y, F::of(load_upto(gate + at + i, left))), left);
    }
  }
}

// `room`: three rows.
inline void gate(const GateArgs& a, int64_t first, int64_t last, float* room) {
  const int64_t values = a.heads * a.width;
  const auto floats = [&](const void* from, Type type, int64_t at, float* place) {
    if (type == Type::f32) return static_cast<const float*>(from) + at;
    widen(static_cast<const uint16_t*>(from) + at, values, place);
    return static_cast<const float*>(place);
  };
  for (int64_t row = first; row < last; ++row) {
    const float* x = floats(a.x, a.x_type, row * a.x_stride, room);
    const float* by = floats(a.gate, a.gate_type, row * a.gate_stride, room + values);
    const bool half = a.gate_type == Type::bf16;
    float* out = half ? room + 2 * values : static_cast<float*>(a.out) + row * a.out_stride;
    if (a.silu) {
      gate_row<Silu>(a, x, by, out);
    } else {
      gate_row<Sigmoid>(a, x, by, out);
    }
    if (half) narrow(out, values, static_cast<uint16_t*>(a.out) + row * a.out_stride);
  }
}
