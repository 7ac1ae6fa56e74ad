// Non-negative least squares over a few terms, from running sums, which the cost model keeps instead of its steps.
//
//   squares   N x N, upper triangle   sums of w x x'      fade by `keep` before each addition
//   products  N                       sums of w x y
//
// solve() is the best of all subsets of terms whose own solution is non-negative: exact for the few terms there are,
// and without the choice of a start. A subset that the sums do not tell apart is passed over.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace prelude {

template <int N>
class LeastSquares {
 public:
  using Vector = std::array<double, N>;

  void add(const Vector& x, double y, double weight, double keep) {
    for (int i = 0; i < N; ++i) {
      const double xi = weight * x[i];
      for (int j = i; j < N; ++j) squares_[i][j] = keep * squares_[i][j] + xi * x[j];
      products_[i] = keep * products_[i] + xi * y;
    }
  }

  // All zero where no subset has a solution.
  Vector solve() const {
    Vector best{}, one{};
    if (solution((1u << N) - 1, one) && non_negative(one)) return one;
    double least = 0.0;
    for (int count = 1; count < N; ++count) {
      for (uint32_t terms = 1; terms < (1u << N); ++terms) {
        if (std::popcount(terms) != count || !solution(terms, one) || !non_negative(one)) continue;
        double residual = 0.0;  // at the solution of the normal equations, up to a constant: -x' b
        for (int i = 0; i < N; ++i) residual -= one[i] * products_[i];
        if (residual < least * (1 + 1e-12)) least = residual, best = one;
      }
    }
    return best;
  }

  double largest() const {
    double most = 0.0;
    for (const Vector& row : squares_) {
      for (const double value : row) most = std::fmax(most, std::fabs(value));
    }
    return most;
  }

 private:
  static bool non_negative(const Vector& x) {
    for (const double value : x) {
      if (!(value >= 0)) return false;
    }
    return true;
  }

  // By elimination, with the others at 0. False: the sums do not tell these terms apart.
  bool solution(uint32_t terms, Vector& out) const {
    int at[N], n = 0;
    for (int i = 0; i < N; ++i) {
      if ((terms >> i & 1) != 0) at[n++] = i;
    }
    double rows[N][N + 1];
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) rows[i][j] = squares_[at[i] < at[j] ? at[i] : at[j]][at[i] < at[j] ? at[j] : at[i]];
      rows[i][n] = products_[at[i]];
    }
    for (int k = 0; k < n; ++k) {
      const double size = std::fabs(squares_[at[k]][at[k]]);
      if (std::fabs(rows[k][k]) <= 1e-10 * size || size == 0.0) return false;
      for (int i = k + 1; i < n; ++i) {
        const double factor = rows[i][k] / rows[k][k];
        for (int j = k; j <= n; ++j) rows[i][j] -= factor * rows[k][j];
      }
    }
    out = {};
    for (int k = n - 1; k >= 0; --k) {
      double rest = 0.0;
      for (int j = k + 1; j < n; ++j) rest += rows[k][j] * out[at[j]];
      out[at[k]] = (rows[k][n] - rest) / rows[k][k];
    }
    return true;
  }

  std::array<Vector, N> squares_{};
  Vector products_{};
};

}  // namespace prelude
