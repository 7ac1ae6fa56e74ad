// The CPU kernels of every target that this machine runs, against plain float64 loops; and the promise that a row's
// bits do not depend on other rows, its cut or the threads.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

#include "check.hpp"
#include "prelude/cpu/attention_plan.hpp"
#include "prelude/cpu/row_work.hpp"
#include "random_values.hpp"

namespace prelude::cpu::portable {
// clang-format off: the order matters
#include "prelude/cpu/lanes_portable.hpp"
#include "prelude/cpu/body_rows.hpp"
// clang-format on
}  // namespace prelude::cpu::portable

using namespace prelude::cpu;

namespace {

float from_bf16(uint16_t x) { return as_float(x); }

double ulps(float value, double exact) {
  const float near = static_cast<float>(exact);
  const double step = static_cast<double>(std::nextafter(near, INFINITY)) - static_cast<double>(near);
  return std::fabs(static_cast<double>(value) - exact) / step;
}

void check_exp(const Kernels& kernels) {
  double worst = 0;
  std::vector<float> x(16), y(16);
  for (int64_t i = 0; i < 2'000'000; i += 16) {
    for (int l = 0; l < 16; ++l) x[l] = -87.3f + static_cast<float>((i + l) * (175.3 / 2'000'000));
    kernels.exp(x.data(), 16, y.data());
    for (int l = 0; l < 16; ++l) worst = std::max(worst, ulps(y[l], std::exp(static_cast<double>(x[l]))));
  }
  std::printf("%s: exp is off by at most %.2f units in the last place\n", kernels.name, worst);
  CHECK(worst < 1.0);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  x = {-INFINITY, -88.0f, 0.0f, nan, 1000.0f, -1e30f, -0.0f, INFINITY, 0, 0, 0, 0, 0, 0, 0, 0};
  kernels.exp(x.data(), 16, y.data());
  CHECK(y[0] == 0.0f && y[1] == 0.0f && y[2] == 1.0f && std::isnan(y[3]) && y[5] == 0.0f && y[6] == 1.0f);
  CHECK(std::isfinite(y[4]) && std::isfinite(y[7]));
}

void check_exp_sum(const Kernels& kernels) {
  Random random{3};
  for (int64_t count : {1, 7, 8, 31, 64, 511, 512, 513, 5000}) {
    const auto x = floats(random, count, 20.0f);
    float most;
    double total, exact = 0;
    kernels.exp_sum(x.data(), count, &most, &total);
    for (float v : x) exact += std::exp(static_cast<double>(v) - most);
    CHECK(most == *std::max_element(x.begin(), x.end()) && std::fabs(total - exact) <= 1e-6 * exact);
  }
}

void check_rows(const Kernels& kernels) {
  Random random{7};
  for (int64_t width : {2, 6, 16, 32, 48, 64, 80, 192, 200}) {
    const int64_t rows = 9, stride = width + 5;
    const auto x = floats(random, rows * stride, 3.0f), gain = floats(random, width);
    std::vector<float> out(static_cast<size_t>(rows * width)), room(static_cast<size_t>(4 * width));
    std::vector<uint16_t> half(out.size());
    NormArgs norm{x.data(), stride, gain.data(), nullptr, out.data(), width, Type::f32, width, 1e-6f};
    kernels.rms_norm(norm, 0, rows, room.data());
    norm.out = half.data(), norm.out_type = Type::bf16;
    kernels.rms_norm(norm, 0, rows, room.data());
    for (int64_t r = 0; r < rows; ++r) {
      double squares = 0;
      for (int64_t i = 0; i < width; ++i) squares += static_cast<double>(x[r * stride + i]) * x[r * stride + i];
      const double factor = 1.0 / std::sqrt(squares / static_cast<double>(width) + 1e-6);
      for (int64_t i = 0; i < width; ++i) {
        const double expected = x[r * stride + i] * factor * gain[i];
        CHECK(std::fabs(out[r * width + i] - expected) <= 4e-7 * std::fabs(expected) + 1e-12);
        CHECK(half[r * width + i] == to_bf16(out[r * width + i]));
      }
    }
    // One row alone has the bits it had among nine.
    std::vector<float> alone(static_cast<size_t>(width));
    NormArgs one{x.data() + 4 * stride, stride, gain.data(), nullptr, alone.data(), width, Type::f32, width, 1e-6f};
    kernels.rms_norm(one, 0, 1, room.data());
    CHECK(std::memcmp(alone.data(), out.data() + 4 * width, sizeof(float) * static_cast<size_t>(width)) == 0);

    auto gates = floats(random, rows * 2 * width, 100.0f);
    gates[0] = -INFINITY, gates[1] = std::numeric_limits<float>::quiet_NaN();
    const auto before = gates;
    kernels.activate(ActivateArgs{gates.data(), 2 * width, Type::f32, width, Activation::silu, true}, 0, rows,
                     room.data());
    CHECK(std::isnan(gates[1]));
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = r ? 0 : 2; i < width; ++i) {
        const double g = before[r * 2 * width + i],
                     expected = g / (1.0 + std::exp(-g)) * before[r * 2 * width + width + i];
        CHECK(std::fabs(gates[r * 2 * width + i] - expected) <= 6e-7 * std::fabs(expected) + 1e-30);
        CHECK(gates[r * 2 * width + width + i] == before[r * 2 * width + width + i]);
      }
  }
}

void check_rotation(const Kernels& kernels) {
  Random random{8};
  const int64_t rows = 5, heads = 3;
  for (int64_t width : {2, 8, 32, 48, 128}) {
    const auto x = floats(random, rows * heads * width), gain = floats(random, heads * width);
    const std::vector<int64_t> positions{0, 3, 9, 3, 1};
    std::vector<float> rope_table(static_cast<size_t>(10 * width));
    for (int64_t p = 0; p < 10; ++p)
      for (int64_t i = 0; i < width; i += 2) {
        rope_table[p * width + i] = static_cast<float>(std::cos(0.1 * static_cast<double>(p * (i + 1))));
        rope_table[p * width + i + 1] = static_cast<float>(std::sin(0.1 * static_cast<double>(p * (i + 1))));
      }
    for (const bool normed : {true, false}) {
      std::vector<float> out(x.size()), room(x.size());
      RotateArgs args{
          x.data(), heads * width, out.data(), heads * width,     Type::f32,       normed ? gain.data() : nullptr,
          heads,    width,         1e-6f,      rope_table.data(), positions.data()};
      kernels.norm_rotate(args, 0, rows, room.data());
      std::vector<float> in_place = x;
      args.in = args.out = in_place.data();
      kernels.norm_rotate(args, 0, rows, room.data());
      CHECK(in_place == out);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t h = 0; h < heads; ++h) {
          const float* head = x.data() + (r * heads + h) * width;
          double squares = 0;
          for (int64_t i = 0; i < width; ++i) squares += static_cast<double>(head[i]) * head[i];
          const double factor = normed ? 1.0 / std::sqrt(squares / static_cast<double>(width) + 1e-6) : 1.0;
          for (int64_t i = 0; i < width; i += 2) {
            const double ga = normed ? gain[h * width + i] : 1.0, gb = normed ? gain[h * width + i + 1] : 1.0;
            const double a = head[i] * factor * ga, b = head[i + 1] * factor * gb;
            const double c = rope_table[positions[r] * width + i], s = rope_table[positions[r] * width + i + 1];
            CHECK(std::fabs(out[(r * heads + h) * width + i] - (a * c - b * s)) < 3e-6);
            CHECK(std::fabs(out[(r * heads + h) * width + i + 1] - (b * c + a * s)) < 3e-6);
          }
        }
    }
  }
}

// A sequence's keys: its runs, and where each key lies.
struct Sequence {
  std::vector<KeyRun> runs;
  std::vector<std::pair<int64_t, bool>> keys;
  int32_t queries;
};

struct Problem {
  AttentionShape shape;
  std::vector<Sequence> sequences;
  std::vector<float> q, k, v, pool_k, pool_v;
  int64_t tokens = 0, slots = 512;

  int32_t window;  // a query sees so many keys, its own among them; 0: all

  Problem(Random& random, AttentionShape s, int32_t w, std::vector<int32_t> lengths) : shape(s), window(w) {
    for (const int32_t length : lengths) {
      Sequence sequence;
      const int kind = static_cast<int>(random.below(3));  // own keys, a context before them, or a decode row
      if (kind > 0) {
        for (int64_t left = 1 + random.below(70); left > 0;) {
          const int64_t run = std::min<int64_t>(left, 1 + random.below(40));
          sequence.runs.push_back({random.below(slots - run), run, true});
          left -= run;
        }
      }
      sequence.queries = kind == 2 ? 1 : length;
      if (kind < 2) sequence.runs.push_back({tokens, length, false});
      tokens += sequence.queries;
      for (const KeyRun& run : sequence.runs)
        for (int64_t i = 0; i < run.length; ++i) sequence.keys.push_back({run.from + i, run.pool});
      sequences.push_back(std::move(sequence));
    }
    const int64_t row = int64_t{shape.kv_heads} * shape.width;
    q = floats(random, tokens * shape.heads * shape.width, 2.0f);
    k = floats(random, tokens * row, 2.0f), v = floats(random, tokens * row);
    pool_k = floats(random, slots * row, 2.0f), pool_v = floats(random, slots * row);
  }

  // Only sequence `which`, or all of them where it is negative; `skip` of its queries are left out. `section` above
  // 0: so many queries at a time, of which alone rows of q and out exist.
  std::vector<float> run(const Kernels& kernels, Type type, int which, int skip, int threads, int section = 0) const {
    std::vector<int32_t> query_starts{0}, visible, hidden, run_starts{0};
    std::vector<KeyRun> runs;
    std::vector<float> asked;
    int64_t first = 0;
    const int64_t wide = int64_t{shape.heads} * shape.width;
    for (size_t s = 0; s < sequences.size(); ++s) {
      const Sequence& sequence = sequences[s];
      if (which < 0 || static_cast<size_t>(which) == s) {
        const auto keys = static_cast<int32_t>(sequence.keys.size());
        for (int32_t i = skip; i < sequence.queries; ++i) {
          visible.push_back(keys - sequence.queries + 1 + i);
          if (window > 0) hidden.push_back(std::max(0, visible.back() - window));
          const auto at = q.begin() + (first + i) * wide;
          asked.insert(asked.end(), at, at + wide);
        }
        query_starts.push_back(static_cast<int32_t>(visible.size()));
        runs.insert(runs.end(), sequence.runs.begin(), sequence.runs.end());
        run_starts.push_back(static_cast<int32_t>(runs.size()));
      }
      first += sequence.queries;
    }
    const int64_t row = int64_t{shape.kv_heads} * shape.width;
    std::vector<float> out(asked.size(), std::numeric_limits<float>::quiet_NaN());
    AttentionPlan plan;
    const auto queries = static_cast<int32_t>(visible.size());
    std::vector<int32_t> sections;
    for (int32_t at = 0; section > 0 && at < queries; at += section) sections.push_back(at);
    if (section > 0) sections.push_back(queries);
    CHECK(plan.build(kernels, shape, query_starts, visible, run_starts, runs, hidden, {}, sections));
    if (section > 0) {
      CHECK(plan.sections() == (queries + section - 1) / section);
      for (int64_t s = 0; s < plan.sections(); ++s) {
        const auto count = static_cast<size_t>(plan.queries_of(s) * wide);
        const auto at = static_cast<size_t>(s * section * wide);
        std::vector<float> own(asked.begin() + at, asked.begin() + at + count), made(count);
        AttentionTensors t{own.data(), k.data(), v.data(), pool_k.data(), pool_v.data(), made.data(),
                           wide,       row,      row,      row,           wide,          type};
        CHECK(plan.run(t, threads, s));
        std::copy(made.begin(), made.end(), out.begin() + at);
      }
      return out;
    }
    if (type == Type::f32) {
      AttentionTensors t{asked.data(), k.data(), v.data(), pool_k.data(), pool_v.data(), out.data(),
                         wide,         row,      row,      row,           wide,          type};
      CHECK(plan.run(t, threads));
      return out;
    }
    auto halves = [](const std::vector<float>& x) {
      std::vector<uint16_t> y(x.size());
      for (size_t i = 0; i < x.size(); ++i) y[i] = to_bf16(x[i]);
      return y;
    };
    const auto hq = halves(asked), hk = halves(k), hv = halves(v), hpk = halves(pool_k), hpv = halves(pool_v);
    std::vector<uint16_t> hout(out.size());
    AttentionTensors t{hq.data(), hk.data(), hv.data(), hpk.data(), hpv.data(), hout.data(),
                       wide,      row,       row,       row,        wide,       type};
    CHECK(plan.run(t, threads));
    for (size_t i = 0; i < out.size(); ++i) out[i] = from_bf16(hout[i]);
    return out;
  }

  std::vector<double> oracle() const {
    std::vector<double> out;
    const int64_t row = int64_t{shape.kv_heads} * shape.width, wide = int64_t{shape.heads} * shape.width;
    int64_t first = 0;
    for (const Sequence& sequence : sequences) {
      const auto keys = static_cast<int64_t>(sequence.keys.size());
      for (int64_t i = 0; i < sequence.queries; ++i)
        for (int64_t h = 0; h < shape.heads; ++h) {
          const int64_t sees = keys - sequence.queries + 1 + i, at = h / (shape.heads / shape.kv_heads) * shape.width;
          std::vector<double> weights(static_cast<size_t>(sees));
          double most = -INFINITY, total = 0;
          const int64_t skips = window > 0 ? std::max<int64_t>(0, sees - window) : 0;
          for (int64_t j = skips; j < sees; ++j) {
            const auto [where, pool] = sequence.keys[static_cast<size_t>(j)];
            double s = 0;
            for (int64_t d = 0; d < shape.width; ++d)
              s += static_cast<double>(q[(first + i) * wide + h * shape.width + d]) *
                   (pool ? pool_k : k)[where * row + at + d];
            weights[j] = s * shape.scale;
            if (shape.cap > 0) weights[j] = shape.cap * std::tanh(weights[j] / shape.cap);
            most = std::max(most, weights[j]);
          }
          for (int64_t j = skips; j < sees; ++j) total += weights[j] = std::exp(weights[j] - most);
          for (int64_t d = 0; d < shape.width; ++d) {
            double sum = 0;
            for (int64_t j = skips; j < sees; ++j) {
              const auto [where, pool] = sequence.keys[static_cast<size_t>(j)];
              sum += weights[j] * (pool ? pool_v : v)[where * row + at + d];
            }
            out.push_back(sum / total);
          }
        }
      first += sequence.queries;
    }
    return out;
  }
};

using Heads = std::array<int32_t, 3>;

void check_attention(const Kernels& kernels) {
  Random random{9};
  double worst = 0, worst_half = 0;
  for (const auto& [heads, kv_heads, width] :
       {Heads{6, 2, 32}, Heads{4, 4, 16}, Heads{4, 1, 8}, Heads{5, 1, 80}, Heads{2, 2, 20}, Heads{2, 1, 128}}) {
    const bool some = width % 16 == 0;
    const AttentionShape shape{heads, kv_heads, width, static_cast<float>(1 / std::sqrt(static_cast<double>(width))),
                               some ? 1.5f : 0.0f};
    std::vector<int32_t> lengths{1, 2, 15, 16, 17, 47, 48, 49, 130};
    const Problem problem(random, shape, some ? width : 0, lengths);
    const auto all = problem.run(kernels, Type::f32, -1, 0, 1),
               exact_half = problem.run(kernels, Type::bf16, -1, 0, 1);
    const auto exact = problem.oracle();
    CHECK(all.size() == exact.size());
    for (size_t i = 0; i < all.size(); ++i) {
      worst = std::max(worst, std::fabs(all[i] - exact[i]));
      worst_half = std::max(worst_half, std::fabs(exact_half[i] - exact[i]));
    }
    CHECK(problem.run(kernels, Type::f32, -1, 0, 3) == all);
    CHECK(problem.run(kernels, Type::bf16, -1, 0, 2) == exact_half);
    for (const int section : {1, 7, 50, 1000}) CHECK(problem.run(kernels, Type::f32, -1, 0, 2, section) == all);
    size_t at = 0;
    for (size_t s = 0; s < lengths.size(); ++s) {
      const int skip = static_cast<int>(random.below(problem.sequences[s].queries));
      const auto alone = problem.run(kernels, Type::f32, static_cast<int>(s), skip, 1);
      const size_t wide = static_cast<size_t>(heads * width);
      at += static_cast<size_t>(skip) * wide;
      CHECK(std::memcmp(alone.data(), all.data() + at, alone.size() * sizeof(float)) == 0);
      at += alone.size();
    }
  }
  std::printf("%s: attention is off by at most %.1e in float32, %.1e with bfloat16 in and out\n", kernels.name, worst,
              worst_half);
  CHECK(worst < 2e-6 && worst_half < 3e-2);
}

void check_refusals(const Kernels& kernels) {
  const AttentionShape shape{2, 1, 8, 1.0f, 0.0f};
  AttentionPlan plan;
  CHECK(!plan.build(kernels, shape, {0, 1}, {0}, {0, 1}, {{0, 4, false}}, {}));
  CHECK(!plan.build(kernels, shape, {0, 1}, {5}, {0, 1}, {{0, 4, false}}, {}));
  CHECK(!plan.build(kernels, shape, {0, 1}, {1}, {0, 1}, {{-1, 4, false}}, {}));
  CHECK(plan.build(kernels, shape, {0, 1}, {4}, {0, 1}, {{3, 4, false}}, {}));
  CHECK(!plan.build(kernels, shape, {0, 1}, {2}, {0, 1}, {{3, 4, false}}, {2}));
  CHECK(!plan.build(kernels, shape, {0, 1}, {2}, {0, 1}, {{3, 4, false}}, {0, 0}));
  CHECK(plan.step_keys() == 7 && plan.pool_keys() == 0);
  CHECK(plan.build(kernels, shape, {0, 2}, {1, 2}, {0, 1}, {{0, 4, false}}, {}, {}, {0, 1, 1, 2}));
  CHECK(plan.sections() == 3 && plan.queries_of(0) == 1 && plan.queries_of(1) == 0);
  for (const std::vector<int32_t>& wrong : {std::vector<int32_t>{0, 1}, {1, 2}, {0, 3}, {0, 2, 1, 2}})
    CHECK(!plan.build(kernels, shape, {0, 2}, {1, 2}, {0, 1}, {{0, 4, false}}, {}, {}, wrong));
}

// Rows far apart in the step, slots in any order: other rows stay unchanged, for any number of threads.
void check_pool_rows() {
  Random random{11};
  for (const int64_t rows : {0, 1, 7, 400}) {
    const int64_t values = 64, tokens = rows + 5, slots = 3 * tokens;
    const auto k = floats(random, tokens * 100), v = floats(random, tokens * 70);
    std::vector<int64_t> at(static_cast<size_t>(slots)), from;
    for (int64_t i = 0; i < slots; ++i) at[i] = i;
    for (int64_t i = slots - 1; i > 0; --i) std::swap(at[i], at[random.below(static_cast<uint32_t>(i + 1))]);
    for (int64_t i = 0; i < rows; ++i) from.push_back(tokens - 1 - i);
    for (const bool all : {false, true}) {
      std::vector<float> pool_k(slots * values, -3.0f), pool_v = pool_k, want_k = pool_k, want_v = pool_k;
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t d = 0; d < values; ++d) {
          want_k[at[i] * values + d] = k[(all ? i : from[i]) * 100 + d];
          want_v[at[i] * values + d] = v[(all ? i : from[i]) * 70 + d];
        }
      const PoolRowsArgs args{k.data(),  v.data(), pool_k.data(), pool_v.data(),
                              100,       70,       values,        all ? nullptr : from.data(),
                              at.data(), Type::f32};
      write_pool(args, rows, 3);
      CHECK(pool_k == want_k && pool_v == want_v);
    }
  }
  const int64_t some[] = {0, 4, 2}, below[] = {1, -1};
  CHECK(all_below(some, 3, 5) && !all_below(some, 3, 4) && !all_below(below, 2, 5) && all_below(below, 0, 0));
}

}  // namespace

int main() {
  check_pool_rows();
  for (const char* name : kKernelNames) {
    const Kernels* kernels = kernels_named(name);
    if (kernels == nullptr) {
      std::printf("%s: not on this machine\n", name);
      continue;
    }
    check_exp(*kernels);
    check_exp_sum(*kernels);
    check_rows(*kernels);
    check_rotation(*kernels);
    check_attention(*kernels);
    check_refusals(*kernels);
  }
  return 0;
}
