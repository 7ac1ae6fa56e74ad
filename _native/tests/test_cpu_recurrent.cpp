// Convolutions, the gated delta rule and gates of every target that this machine runs, against plain float64 loops;
// and the promise that a token's bits depend on its own sequence alone: wherever a prompt is cut, forked or
// continued.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "check.hpp"
#include "prelude/cpu/recurrent.hpp"
#include "random_values.hpp"

using namespace prelude::cpu;

namespace {

struct Layer {
  DeltaShape shape;
  int64_t kernel;
  std::vector<float> weight, rate, offset;
  int64_t stride() const { return shape.row(); }  // queries, keys, values, b, a: as many as a row has
  int64_t windows() const { return (kernel - 1) * shape.decays(); }
  int64_t entry() const { return windows() + state_floats(shape); }
};

Layer make_layer(Random& random, DeltaShape shape, int64_t kernel) {
  Layer layer{shape, kernel, floats(random, kernel * shape.decays()), floats(random, shape.value_heads),
              floats(random, shape.value_heads)};
  for (float& rate : layer.rate) rate = std::exp(rate);
  return layer;
}

// Runs a step; the outputs are where the values were. Rows [tokens][stride].
std::vector<float> run(const Kernels& kernels, const Layer& layer, const SequencePlan& plan,
                       const std::vector<float>& x, std::vector<float>& entries, int threads = 1) {
  const int64_t stride = layer.stride();
  std::vector<float> made(static_cast<size_t>(plan.rows() * stride), -7.0f);
  const ConvolveArgs conv{x.data(),  made.data(), nullptr,       layer.weight.data(),  nullptr,      entries.data(),
                          stride,    stride,      layer.entry(), layer.shape.decays(), layer.kernel, Type::f32,
                          Type::f32, true};
  const DeltaInputArgs inputs{conv, x.data() + layer.shape.decays(), layer.rate.data(), layer.offset.data(),
                              layer.shape};
  CHECK(delta_inputs(kernels, plan, inputs, threads));
  const DeltaArgs rule{made.data(), stride, entries.data() + layer.windows(), layer.entry(), layer.shape};
  CHECK(delta(kernels, plan, rule, threads));
  return made;
}

// [tokens][value heads * value width] of a whole sequence, in float64 from its first token.
std::vector<double> reference(const Layer& layer, const std::vector<float>& x, int64_t tokens) {
  const DeltaShape& s = layer.shape;
  const int64_t stride = layer.stride(), channels = s.decays();
  std::vector<double> out, state(static_cast<size_t>(s.value_heads * s.key_width * s.value_width), 0.0);
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<double> row(static_cast<size_t>(channels), 0.0);
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t j = 0; j < layer.kernel; ++j) {
        const int64_t from = t - (layer.kernel - 1) + j;
        if (from >= 0) row[c] += static_cast<double>(x[from * stride + c]) * layer.weight[j * channels + c];
      }
      row[c] = row[c] / (1.0 + std::exp(-row[c]));
    }
    for (int64_t head = 0; head < 2 * s.key_heads; ++head) {
      double squares = 0;
      for (int64_t i = 0; i < s.key_width; ++i) squares += row[head * s.key_width + i] * row[head * s.key_width + i];
      double factor = 1.0 / std::sqrt(squares + 1e-6);
      if (head < s.key_heads) factor /= std::sqrt(static_cast<double>(s.key_width));
      for (int64_t i = 0; i < s.key_width; ++i) row[head * s.key_width + i] *= factor;
    }
    for (int64_t head = 0; head < s.value_heads; ++head) {
      const double b = x[t * stride + channels + head], a = x[t * stride + channels + s.value_heads + head];
      const double beta = 1.0 / (1.0 + std::exp(-b));
      const double decay = std::exp(-layer.rate[head] * std::log1p(std::exp(a + layer.offset[head])));
      const int64_t key_head = head / (s.value_heads / s.key_heads);
      const double *q = row.data() + key_head * s.key_width, *k = q + s.keys();
      const double* v = row.data() + 2 * s.keys() + head * s.value_width;
      double* own = state.data() + head * s.key_width * s.value_width;
      for (int64_t d = 0; d < s.value_width; ++d) {
        double seen = 0, read = 0;
        for (int64_t i = 0; i < s.key_width; ++i) seen += (own[i * s.value_width + d] *= decay) * k[i];
        for (int64_t i = 0; i < s.key_width; ++i) {
          own[i * s.value_width + d] += k[i] * beta * (v[d] - seen);
          read += own[i * s.value_width + d] * q[i];
        }
        out.push_back(read);
      }
    }
  }
  return out;
}

bool same_rows(const Layer& layer, const std::vector<float>& one, int64_t at, const std::vector<float>& other,
               int64_t from, int64_t rows) {
  const int64_t stride = layer.stride(), first = 2 * layer.shape.keys();
  for (int64_t r = 0; r < rows; ++r)
    if (std::memcmp(one.data() + (at + r) * stride + first, other.data() + (from + r) * stride + first,
                    sizeof(float) * static_cast<size_t>(layer.shape.values())) != 0)
      return false;
  return true;
}

std::vector<float> part(const Layer& layer, const std::vector<float>& x, int64_t first, int64_t last) {
  return {x.begin() + first * layer.stride(), x.begin() + last * layer.stride()};
}

void check_delta(const Kernels& kernels) {
  Random random{3};
  const float nan = std::nanf("");
  double worst = 0;
  for (const DeltaShape shape : {DeltaShape{1, 1, 1, 1}, DeltaShape{2, 4, 16, 16}, DeltaShape{2, 6, 20, 37},
                                 DeltaShape{3, 3, 48, 64}, DeltaShape{1, 2, 9, 100}})
    for (const int64_t kernel : {1, 2, 4, 7}) {
      const Layer layer = make_layer(random, shape, kernel);
      const int64_t tokens = 23;
      const auto x = floats(random, tokens * layer.stride(), 2.0f);
      std::vector<float> entries(static_cast<size_t>(3 * layer.entry()), nan);
      SequencePlan whole;
      CHECK(whole.build({0, 23}, {-1}, {-1}, {2}, 3, kernel).wrong == nullptr);
      const auto made = run(kernels, layer, whole, x, entries);
      const auto exact = reference(layer, x, tokens);
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t d = 0; d < shape.values(); ++d)
          worst = std::max(worst, std::fabs(made[t * layer.stride() + 2 * shape.keys() + d] -
                                            exact[static_cast<size_t>(t * shape.values() + d)]));
      // Cut anywhere, and token by token behind the cut, in an entry that held something else.
      for (const int64_t cut : {1, 2, 5, 22}) {
        SequencePlan head, tail, next;
        CHECK(head.build({0, static_cast<int32_t>(cut)}, {-1}, {-1}, {0}, 3, kernel).wrong == nullptr);
        CHECK(same_rows(layer, run(kernels, layer, head, part(layer, x, 0, cut), entries), 0, made, 0, cut));
        CHECK(tail.build({0, static_cast<int32_t>(tokens - cut)}, {-1}, {0}, {1}, 3, kernel).wrong == nullptr);
        const auto rest = run(kernels, layer, tail, part(layer, x, cut, tokens), entries, 3);
        CHECK(same_rows(layer, rest, 0, made, cut, tokens - cut));
        CHECK(std::memcmp(entries.data() + layer.entry(), entries.data() + 2 * layer.entry(),
                          sizeof(float) * static_cast<size_t>(layer.entry())) == 0);
        CHECK(next.build({0, 1}, {-1}, {0}, {0}, 3, kernel).wrong == nullptr);
        for (int64_t t = cut; t < tokens; ++t)
          CHECK(same_rows(layer, run(kernels, layer, next, part(layer, x, t, t + 1), entries), 0, made, t, 1));
      }
    }
  std::printf("%s: the gated delta rule is off by at most %.1e\n", kernels.name, worst);
  CHECK(worst < 1e-5);
}

// A state with branches, one of them empty, one with children of its own, beside rows of other sequences.
void check_forest(const Kernels& kernels) {
  Random random{5};
  const Layer layer = make_layer(random, {2, 4, 12, 18}, 4);
  std::vector<float> entries(static_cast<size_t>(4 * layer.entry()), std::nanf(""));
  const auto x = floats(random, 40 * layer.stride(), 2.0f);
  struct Piece {
    std::vector<int64_t> path;  // rows of x
    int32_t parent;
  };
  const auto range = [](int64_t a, int64_t b) {
    std::vector<int64_t> rows;
    for (; a < b; ++a) rows.push_back(a);
    return rows;
  };
  // 0: 9 tokens; 1 below 0: 1 token; 2: another tree; 3 below 1: 5 tokens; 4 below 0: nothing; 5 below 4: 6; 6: a row
  // that goes on from entry 3.
  const std::vector<Piece> pieces{{range(0, 9), -1}, {range(9, 10), 0},  {range(10, 17), -1}, {range(17, 22), 1},
                                  {{}, 0},           {range(22, 28), 4}, {range(39, 40), -1}};
  SequencePlan before;
  CHECK(before.build({0, 2}, {-1}, {-1}, {3}, 4, 4).wrong == nullptr);
  run(kernels, layer, before, part(layer, x, 37, 39), entries);
  const auto kept = entries;
  std::vector<int32_t> starts{0}, parents;
  std::vector<float> step;
  for (const Piece& piece : pieces) {
    for (const int64_t row : piece.path) {
      const auto one = part(layer, x, row, row + 1);
      step.insert(step.end(), one.begin(), one.end());
    }
    starts.push_back(starts.back() + static_cast<int32_t>(piece.path.size()));
    parents.push_back(piece.parent);
  }
  for (const int threads : {1, 3}) {
    entries = kept;
    SequencePlan plan;
    CHECK(plan.build(starts, parents, {-1, -1, -1, -1, -1, -1, 3}, {-1, -1, -1, 1, -1, 0, 3}, 4, 4).wrong == nullptr);
    const auto made = run(kernels, layer, plan, step, entries, threads);
    for (size_t s = 0; s + 1 < pieces.size(); ++s) {
      std::vector<int64_t> path;
      for (int32_t at = static_cast<int32_t>(s); at >= 0; at = pieces[static_cast<size_t>(at)].parent)
        path.insert(path.begin(), pieces[static_cast<size_t>(at)].path.begin(),
                    pieces[static_cast<size_t>(at)].path.end());
      std::vector<float> alone, own(static_cast<size_t>(layer.entry()), std::nanf(""));
      for (const int64_t row : path) {
        const auto one = part(layer, x, row, row + 1);
        alone.insert(alone.end(), one.begin(), one.end());
      }
      SequencePlan single;
      const auto length = static_cast<int32_t>(path.size());
      CHECK(single.build({0, length}, {-1}, {-1}, {0}, 1, 4).wrong == nullptr);
      const auto expected = run(kernels, layer, single, alone, own);
      const auto count = static_cast<int64_t>(pieces[s].path.size());
      CHECK(same_rows(layer, made, starts[s], expected, length - count, count));
      const int64_t entry = s == 3 ? 1 : s == 5 ? 0 : -1;
      if (entry >= 0)
        CHECK(std::memcmp(entries.data() + entry * layer.entry(), own.data(), sizeof(float) * own.size()) == 0);
    }
    SequencePlan last;
    auto single = kept;
    CHECK(last.build({0, 1}, {-1}, {3}, {3}, 4, 4).wrong == nullptr);
    CHECK(same_rows(layer, made, starts[6], run(kernels, layer, last, part(layer, x, 39, 40), single), 0, 1));
  }
}

void check_convolution(const Kernels& kernels) {
  Random random{9};
  for (const int64_t channels : {1, 8, 30, 64})
    for (const int64_t kernel : {1, 3, 5}) {
      const int64_t tokens = 11, stride = 3 * channels;
      const auto x = floats(random, tokens * stride), weight = floats(random, kernel * channels);
      const auto bias = floats(random, channels);
      std::vector<uint16_t> half(x.size());
      for (size_t i = 0; i < x.size(); ++i) half[i] = to_bf16(x[i]);
      std::vector<float> windows(static_cast<size_t>(kernel * channels), std::nanf(""));
      SequencePlan plan;
      CHECK(plan.build({0, 11}, {-1}, {-1}, {0}, 1, kernel).wrong == nullptr);
      for (const bool is_half : {false, true}) {
        auto rows = x;
        auto half_rows = half;
        void* at = is_half ? static_cast<void*>(half_rows.data()) : static_cast<void*>(rows.data());
        const auto behind = [&](int64_t count) {
          return is_half ? static_cast<void*>(half_rows.data() + count) : static_cast<void*>(rows.data() + count);
        };
        const Type type = is_half ? Type::bf16 : Type::f32;
        const ConvolveArgs args{
            at,     behind(2 * channels), behind(channels), weight.data(), bias.data(), windows.data(), stride,
            stride, kernel * channels,    channels,         kernel,        type,        type,           false};
        CHECK(convolve(kernels, plan, args, 2));
        const auto value = [&](int64_t t, int64_t c) -> double {
          if (!is_half) return x[t * stride + c];
          const uint32_t wide = static_cast<uint32_t>(half[t * stride + c]) << 16;
          float found;
          std::memcpy(&found, &wide, 4);
          return found;
        };
        for (int64_t t = 0; t < tokens; ++t)
          for (int64_t c = 0; c < channels; ++c) {
            double expected = bias[c];
            for (int64_t j = 0; j < kernel; ++j)
              if (t - (kernel - 1) + j >= 0) expected += value(t - (kernel - 1) + j, c) * weight[j * channels + c];
            expected *= value(t, channels + c);
            if (is_half)
              CHECK(std::fabs(half_rows[t * stride + 2 * channels + c] -
                              static_cast<double>(to_bf16(static_cast<float>(expected)))) <= 1);
            else
              CHECK(std::fabs(rows[t * stride + 2 * channels + c] - expected) < 1e-5);
          }
        for (int64_t j = 0; j + 1 < kernel; ++j)
          for (int64_t c = 0; c < channels; ++c)
            CHECK(windows[j * channels + c] == static_cast<float>(value(tokens - kernel + 1 + j, c)));
      }
    }
}

void check_gates(const Kernels& kernels) {
  Random random{13};
  for (const int64_t width : {1, 8, 20, 64}) {
    const int64_t rows = 5, heads = 3, values = heads * width;
    const auto x = floats(random, rows * values, 3.0f), by = floats(random, rows * values, 5.0f);
    const auto gain = floats(random, width);
    for (const bool silu : {false, true})
      for (const bool normed : {false, true}) {
        auto out = x;
        const GateArgs args{out.data(), by.data(), out.data(), normed ? gain.data() : nullptr,
                            values,     values,    values,     heads,
                            width,      Type::f32, Type::f32,  1e-6f,
                            silu};
        CHECK(gate(kernels, args, rows, 1));
        for (int64_t i = 0; i < rows * values; ++i) {
          double squares = 0;
          for (int64_t d = 0; d < width; ++d)
            squares += static_cast<double>(x[i / width * width + d]) * x[i / width * width + d];
          const double norm = normed ? gain[i % width] / std::sqrt(squares / static_cast<double>(width) + 1e-6) : 1.0;
          const double sigmoid = 1.0 / (1.0 + std::exp(-static_cast<double>(by[i])));
          CHECK(std::fabs(out[i] - x[i] * norm * sigmoid * (silu ? by[i] : 1.0)) < 2e-5);
        }
      }
  }
}

void check_refusals() {
  SequencePlan plan;
  const auto refused = [&](std::vector<int32_t> starts, std::vector<int32_t> parents, std::vector<int32_t> load,
                           std::vector<int32_t> store, int64_t entries = 2, int64_t kernel = 4) {
    const bool bad = plan.build(starts, parents, load, store, entries, kernel).wrong != nullptr;
    return bad && plan.rows() == 0 && plan.trees() == 0;
  };
  CHECK(refused({0, 3}, {-1}, {-1}, {}));
  CHECK(refused({1, 3}, {-1}, {-1}, {-1}));
  CHECK(refused({0, 3, 2}, {-1, -1}, {-1, -1}, {-1, -1}));
  CHECK(refused({0, 3, 4}, {1, -1}, {-1, -1}, {-1, -1}));
  CHECK(refused({0, 3}, {0}, {-1}, {-1}));
  CHECK(refused({0, 3}, {-1}, {2}, {-1}));
  CHECK(refused({0, 3}, {-1}, {-1}, {2}));
  CHECK(refused({0, 3}, {-1}, {-2}, {-1}));
  CHECK(refused({0, 3, 4}, {-1, 0}, {-1, 1}, {-1, -1}));
  CHECK(refused({0, 3, 4}, {-1, -1}, {-1, -1}, {1, 1}));
  CHECK(refused({0, 3, 4}, {-1, -1}, {1, -1}, {-1, 1}));
  CHECK(refused({0, 3}, {-1}, {-1}, {-1}, 2, 0));
  CHECK(refused({0, 3}, {-1}, {-1}, {-1}, 2, kMostTaps + 1));
  CHECK(refused({0, 3}, {-1}, {-1}, {-1}, INT32_MAX, 4));
  CHECK(plan.build({0, 3, 4}, {-1, 0}, {1, -1}, {-1, 1}, 2, 4).wrong == nullptr && plan.trees() == 1);
  CHECK(plan.build({0}, {}, {}, {}, 0, 1).wrong == nullptr && plan.rows() == 0);
}

}  // namespace

int main() {
  check_refusals();
  for (const char* name : kKernelNames) {
    const Kernels* kernels = kernels_named(name);
    if (kernels == nullptr) {
      std::printf("%s: not on this machine\n", name);
      continue;
    }
    check_delta(*kernels);
    check_forest(*kernels);
    check_convolution(*kernels);
    check_gates(*kernels);
  }
  return 0;
}
