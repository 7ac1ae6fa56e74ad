// Paged attention against the plain formula in double, over random shapes; every vector width that runs here.
#include <cmath>
#include <vector>

#include "check.hpp"
#include "prelude/paged_attention.hpp"

namespace {

using prelude::paged::Pool;
using prelude::paged::Queries;
using prelude::paged::Rows;

struct Case {
  int heads, kv_heads, dim, size;
  std::vector<int32_t> blocks, begins, ends, lengths;
  std::vector<float> q, k, v;

  Case(Random& random, int dim_) : dim(dim_) {
    kv_heads = 1 + static_cast<int>(random.below(3));
    heads = kv_heads * (1 + static_cast<int>(random.below(6)));
    size = 1 + static_cast<int>(random.below(20));
    const int64_t rows = 1 + random.below(4);
    for (int64_t r = 0; r < rows; ++r) {
      lengths.push_back(static_cast<int32_t>(1 + random.below(200)));
      begins.push_back(static_cast<int32_t>(blocks.size()));
      for (int b = 0; b < (lengths.back() + size - 1) / size; ++b)
        blocks.push_back(static_cast<int32_t>(blocks.size()));
      ends.push_back(static_cast<int32_t>(blocks.size()));
    }
    for (size_t i = blocks.size(); i > 1; --i)
      std::swap(blocks[i - 1], blocks[random.below(static_cast<int64_t>(i))]);
    auto fill = [&](std::vector<float>& x, size_t n) {  // exactly so long: a sanitizer sees what is read past it
      x.resize(n);
      for (float& f : x) f = static_cast<float>(random.below(4001) - 2000) / 1000.0f;
    };
    fill(q, rows * heads * dim);
    fill(k, blocks.size() * size * kv_heads * dim);
    fill(v, k.size());
  }

  Rows rows() const {
    return {blocks.data(), begins.data(), ends.data(), lengths.data(), static_cast<int64_t>(lengths.size()), size};
  }

  double expected(int64_t row, int head, int d) const {
    const int kv_head = head / (heads / kv_heads);
    double most = -1e300, sum = 0, out = 0;
    std::vector<double> scores;
    auto slot = [&](int t) { return int64_t{blocks[begins[row] + t / size]} * size + t % size; };
    for (int t = 0; t < lengths[row]; ++t) {
      double s = 0;
      for (int i = 0; i < dim; ++i)
        s += double{q[(row * heads + head) * dim + i]} * k[(slot(t) * kv_heads + kv_head) * dim + i];
      scores.push_back(s / std::sqrt(double(dim)));
      most = std::max(most, scores.back());
    }
    for (int t = 0; t < lengths[row]; ++t) {
      const double w = std::exp(scores[t] - most);
      sum += w;
      out += w * v[(slot(t) * kv_heads + kv_head) * dim + d];
    }
    return out / sum;
  }
};

template <typename T>
void run(const Case& c, const std::vector<T>& q, const std::vector<T>& k, const std::vector<T>& v,
         std::vector<T>& out, int width) {
  const Pool pool{k.data(), v.data(), c.kv_heads, c.dim};
  const Queries io{q.data(), int64_t{c.heads} * c.dim, out.data(), c.heads, 1.0f / std::sqrt(float(c.dim))};
  std::vector<float> scratch(prelude::paged::scratch_floats(pool, io));
  prelude::paged::attend<T>(c.rows(), pool, io, width, scratch.data());
}

std::vector<uint16_t> halves(const std::vector<float>& x) {
  std::vector<uint16_t> out;
  for (float f : x) out.push_back(prelude::paged::detail::to_bfloat16(f));
  return out;
}

}  // namespace

int main() {
  Random random{2026};
  for (int i = 0; i < 120; ++i) {
    const int dims[] = {3, 4, 12, 8, 16, 24, 64};
    const Case c(random, dims[random.below(7)]);
    CHECK(prelude::paged::check(c.rows(), static_cast<int64_t>(c.blocks.size())).wrong == nullptr);
    for (int width : {1, 4, 8}) {
      if (c.dim % width || width > prelude::paged::vector_width(c.dim)) continue;
      std::vector<float> out(c.q.size());
      run<float>(c, c.q, c.k, c.v, out, width);
      std::vector<uint16_t> small(c.q.size());
      run<uint16_t>(c, halves(c.q), halves(c.k), halves(c.v), small, width);
      for (size_t at = 0; at < out.size(); ++at) {
        const int64_t row = at / (c.heads * c.dim);
        const double wanted = c.expected(row, static_cast<int>(at / c.dim % c.heads), static_cast<int>(at % c.dim));
        CHECK(std::abs(out[at] - wanted) < 1e-5);
        CHECK(std::abs(prelude::paged::detail::load<1>(&small[at]) - wanted) < 0.15);
      }
    }
  }
  // A table that says more than there is.
  const Case c(random, 8);
  Rows rows = c.rows();
  CHECK(prelude::paged::check(rows, static_cast<int64_t>(c.blocks.size()) - 1).wrong != nullptr);
  const int32_t longer = (c.ends[0] - c.begins[0]) * c.size + 1;
  rows.lengths = &longer, rows.count = 1;
  CHECK(prelude::paged::check(rows, static_cast<int64_t>(c.blocks.size())).row == 0);
  return 0;
}
