// The expected seconds of a step, learnt from measured ones: four terms (a constant, tokens, keys that queries read,
// rows that meet the vocabulary), each with a coefficient in seconds that is never negative.
//
//   observe ──▶ an outlier? cut ──▶ sums of LeastSquares, faded ──▶ fitted(): solved when asked for, and seldom
//
// Terms are scaled to typical sizes, so that the sums are of one magnitude.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "prelude/least_squares.hpp"

namespace prelude {

// The key positions that `uncached` tokens behind `cached` ones read, each all before it and itself.
inline double prompt_keys(double uncached, double cached) { return uncached * (cached + (uncached + 1) / 2); }

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
  double largest() const { return sums_.largest(); }

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
