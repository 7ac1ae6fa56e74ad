// The expected seconds of a step, learnt from measured ones: four terms (a constant, tokens, keys that queries read,
// rows that meet the vocabulary), each with a coefficient in seconds that is never negative.
//
//   observe ──▶ an outlier? cut ──▶ sums of LeastSquares, faded ──▶ fitted(): solved when asked for, and seldom
//
// Terms are scaled to typical sizes, so that the sums are of one magnitude. LeastSquares keeps sums in place of
// steps:
//
//   squares   N x N, upper triangle   sums of w x x'      fade by `keep` before each addition
//   products  N                       sums of w x y
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

  // The best of all subsets of terms whose own solution is not negative: exact for the few terms there are, and
  // without the choice of a start. All zero where no subset has a solution.
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

class CostFit {
 public:
  using Terms = std::array<double, 4>;
  static constexpr int64_t kTrusted = 32;  // steps after which a prediction is good enough to tell an outlier
  static constexpr int64_t kRefit = 32;    // steps between two solutions, from then on
  static constexpr double kOutlier = 4.0;  // a step is taken as at most so many times its prediction
  static constexpr Terms kScale{1.0, 1e2, 1e5, 1e1};

  // Sums fade by 1 - 1/memory before an addition, once there are as many steps.
  explicit CostFit(int64_t memory) : memory_(memory) {}

  int64_t steps() const { return steps_; }

  // Values that cannot be a duration (zero, not a number) are ignored.
  void observe(const Terms& x, double seconds) {
    if (!(seconds > 0) || !std::isfinite(seconds)) return;
    if (steps_ >= kTrusted) {
      const double expected = predict(x);
      if (expected > 0 && kOutlier * expected < seconds) seconds = kOutlier * expected;
    }
    add(x, seconds, 1.0);
  }

  // A step that is taken as it is; it counts as `weight` of them.
  void add(const Terms& x, double seconds, double weight) {
    Terms scaled;
    for (size_t i = 0; i < x.size(); ++i) scaled[i] = x[i] / kScale[i];
    sums_.add(scaled, seconds, weight / seconds, steps_ < memory_ ? 1.0 : 1.0 - 1.0 / static_cast<double>(memory_));
    ++steps_, ++unfitted_;
  }

  // Coefficients of an earlier fit, whose steps have been added: believed until new steps say otherwise.
  void start_from(const Terms& coefficients, bool trusted) {
    coefficients_ = coefficients;
    if (trusted) steps_ = kTrusted, unfitted_ = 0;
  }

  const Terms& fitted() {
    if (unfitted_ >= (steps_ <= kTrusted ? 1 : kRefit)) {
      unfitted_ = 0;
      coefficients_ = sums_.solve();
      for (size_t i = 0; i < coefficients_.size(); ++i) coefficients_[i] /= kScale[i];
    }
    return coefficients_;
  }

  double predict(const Terms& x) {
    const Terms& c = fitted();
    return c[0] * x[0] + c[1] * x[1] + c[2] * x[2] + c[3] * x[3];
  }

 private:
  LeastSquares<4> sums_;
  Terms coefficients_{};
  int64_t memory_, steps_ = 0, unfitted_ = 0;
};

}  // namespace prelude
