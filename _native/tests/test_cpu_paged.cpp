// Paged attention against the plain formula in double, over random shapes and every target that runs here.
#include <cmath>
#include <cstring>
#include <vector>

#include "check.hpp"
#include "prelude/cpu/paged_attention.hpp"
#include "random_values.hpp"

namespace {

using prelude::cpu::BlockTables;
using prelude::cpu::Kernels;
using prelude::cpu::PagedArgs;
using prelude::cpu::Type;

uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

struct Case {
  int heads, kv_heads, dim, size;
  float cap;
  std::vector<int32_t> blocks, begins, ends, lengths, offsets;
  std::vector<float> q, k, v;

  Case(Random& random, int dim_, int longest) : dim(dim_) {
    kv_heads = 1 + static_cast<int>(random.below(3));
    heads = kv_heads * (1 + static_cast<int>(random.below(6)));
    size = 1 + static_cast<int>(random.below(20));
    cap = random.below(2) ? 2.5f : 0.0f;
    const int64_t rows = 1 + random.below(4);
    for (int64_t r = 0; r < rows; ++r) {
      lengths.push_back(static_cast<int32_t>(1 + random.below(longest)));
      offsets.push_back(static_cast<int32_t>(random.below(size)));
      begins.push_back(static_cast<int32_t>(blocks.size()));
      for (int b = 0; b < (offsets.back() + lengths.back() + size - 1) / size; ++b)
        blocks.push_back(static_cast<int32_t>(blocks.size()));
      ends.push_back(static_cast<int32_t>(blocks.size()));
    }
    for (size_t i = blocks.size(); i > 1; --i)
      std::swap(blocks[i - 1], blocks[random.below(static_cast<int64_t>(i))]);
    auto fill = [&](std::vector<float>& x, size_t n) {  // exactly so long: a sanitizer sees reads past it
      x.resize(n);
      for (float& f : x) f = static_cast<float>(random.below(4001) - 2000) / 1000.0f;
    };
    fill(q, rows * heads * dim);
    fill(k, blocks.size() * size * kv_heads * dim);
    fill(v, k.size());
  }

  BlockTables tables() const {
    return {blocks.data(),
            begins.data(),
            ends.data(),
            lengths.data(),
            offsets.data(),
            static_cast<int64_t>(lengths.size()),
            size};
  }

  // [rows, heads, dim]
  std::vector<double> expected() const {
    std::vector<double> all;
    for (size_t row = 0; row < lengths.size(); ++row)
      for (int head = 0; head < heads; ++head) {
        const float* query = q.data() + all.size();
        double most = -1e300, sum = 0;
        std::vector<double> scores, out(static_cast<size_t>(dim));
        auto at = [&](int t) {
          const int u = t + offsets[row];
          const int64_t slot = int64_t{blocks[begins[row] + u / size]} * size + u % size;
          return (slot * kv_heads + head / (heads / kv_heads)) * dim;
        };
        for (int t = 0; t < lengths[row]; ++t) {
          double s = 0;
          for (int i = 0; i < dim; ++i) s += double{query[i]} * k[at(t) + i];
          s /= std::sqrt(double(dim));
          scores.push_back(cap > 0 ? cap * std::tanh(s / cap) : s);
          most = std::max(most, scores.back());
        }
        for (int t = 0; t < lengths[row]; ++t) {
          const double weight = std::exp(scores[t] - most);
          sum += weight;
          for (int d = 0; d < dim; ++d) out[d] += weight * v[at(t) + d];
        }
        for (double value : out) all.push_back(value / sum);
      }
    return all;
  }
};

template <typename T>
std::vector<T> run(const Kernels& kernels, const Case& c, const std::vector<T>& q, const std::vector<T>& k,
                   const std::vector<T>& v, int threads) {
  std::vector<T> out(c.q.size());
  PagedArgs args{c.tables(), q.data(),
                 k.data(),   v.data(),
                 out.data(), int64_t{c.heads} * c.dim,
                 c.heads,    c.kv_heads,
                 c.dim,      1.0f / std::sqrt(static_cast<float>(c.dim)),
                 c.cap,      sizeof(T) == sizeof(float) ? Type::f32 : Type::bf16};
  std::vector<float> room(static_cast<size_t>(paged_room(args) * threads));  // exactly so much, as above
  prelude::cpu::attend_paged(kernels, args, room.data(), threads);
  return out;
}

std::vector<uint16_t> halves(const std::vector<float>& x) {
  std::vector<uint16_t> out;
  for (float f : x) out.push_back(static_cast<uint16_t>(bits_of(f) >> 16));
  return out;
}

std::vector<float> widened(const std::vector<uint16_t>& x) {
  std::vector<float> out(x.size());
  prelude::cpu::widen(x.data(), static_cast<int64_t>(x.size()), out.data());
  return out;
}

void check_case(const Kernels& kernels, const Case& c, int threads) {
  const std::vector<float> out = run<float>(kernels, c, c.q, c.k, c.v, threads);
  std::vector<double> wanted = c.expected();
  for (size_t at = 0; at < out.size(); ++at) CHECK(std::abs(out[at] - wanted[at]) < 1e-5);
  const auto q = halves(c.q), k = halves(c.k), v = halves(c.v);
  const std::vector<float> small = widened(run<uint16_t>(kernels, c, q, k, v, threads));
  Case rounded = c;
  rounded.q = widened(q), rounded.k = widened(k), rounded.v = widened(v);
  wanted = rounded.expected();
  for (size_t at = 0; at < small.size(); ++at) CHECK(std::abs(small[at] - wanted[at]) < 0.01);
  // A row alone has the bits it has among the others.
  for (size_t row = 0; row < c.lengths.size(); ++row) {
    Case one = c;
    one.begins = {c.begins[row]}, one.ends = {c.ends[row]}, one.lengths = {c.lengths[row]},
    one.offsets = {c.offsets[row]};
    const auto from = c.q.begin() + static_cast<std::ptrdiff_t>(row) * c.heads * c.dim;
    one.q.assign(from, from + c.heads * c.dim);
    const std::vector<float> alone = run<float>(kernels, one, one.q, one.k, one.v, 1);
    CHECK(std::memcmp(alone.data(), out.data() + row * alone.size(), alone.size() * sizeof(float)) == 0);
  }
}

}  // namespace

int main() {
  for (const char* name : kKernelNames) {
    const Kernels* kernels = prelude::cpu::kernels_named(name);
    if (kernels == nullptr) continue;
    Random random{2026};
    for (int i = 0; i < 60; ++i) {
      const int dims[] = {3, 4, 12, 8, 16, 24, 32, 40, 64, 80, 128};
      const Case c(random, dims[random.below(11)], i % 10 == 0 ? 1200 : 150);
      CHECK(prelude::cpu::check(c.tables(), static_cast<int64_t>(c.blocks.size())).wrong == nullptr);
      check_case(*kernels, c, 1 + static_cast<int>(random.below(8)));
    }
  }
  Random random{7};
  // A table that says more than there is.
  const Case c(random, 8, 150);
  BlockTables tables = c.tables();
  CHECK(prelude::cpu::check(tables, static_cast<int64_t>(c.blocks.size()) - 1).wrong != nullptr);
  const int32_t longer = (c.ends[0] - c.begins[0]) * c.size - c.offsets[0] + 1, outside = c.size;
  tables.lengths = &longer, tables.count = 1;
  CHECK(prelude::cpu::check(tables, static_cast<int64_t>(c.blocks.size())).row == 0);
  tables = c.tables();
  tables.offsets = &outside, tables.count = 1;
  CHECK(prelude::cpu::check(tables, static_cast<int64_t>(c.blocks.size())).wrong != nullptr);
  return 0;
}
