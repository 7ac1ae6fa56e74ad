// The cost model: exact steps are learnt, an outlier moves it little, coefficients are worked out anew when they are
// due. Its least squares: known solutions are found again, and no other subset of terms does better.
#include <cmath>

#include "check.hpp"
#include "prelude/cost_fit.hpp"

using namespace prelude;

static CostFit::Terms work(Random& random) {
  return {1.0, static_cast<double>(1 + random.below(4000)), static_cast<double>(random.below(4'000'000)),
          static_cast<double>(random.below(64))};
}

static double uniform(Random& random) { return static_cast<double>(random.below(1'000'000)) / 1e6; }

static void least_squares() {
  Random random{3};
  for (int round = 0; round < 200; ++round) {
    std::array<double, 4> truth{};
    for (double& value : truth) value = random.chance(40) ? 0.0 : uniform(random);
    const bool noisy = round % 2 == 1;
    LeastSquares<4> sums;
    std::array<std::array<double, 4>, 60> xs;
    std::array<double, 60> ys;
    for (size_t k = 0; k < xs.size(); ++k) {
      xs[k] = {1.0, uniform(random), uniform(random), uniform(random)};
      ys[k] = 0.0;
      for (size_t i = 0; i < 4; ++i) ys[k] += truth[i] * xs[k][i];
      if (noisy) ys[k] += uniform(random) - 0.5;
      sums.add(xs[k], ys[k], 1.0, 1.0);
    }
    auto error = [&](const std::array<double, 4>& c) {
      double sum = 0.0;
      for (size_t k = 0; k < xs.size(); ++k) {
        double miss = ys[k];
        for (size_t i = 0; i < 4; ++i) miss -= c[i] * xs[k][i];
        sum += miss * miss;
      }
      return sum;
    };
    const auto found = sums.solve();
    const double least = error(found);
    for (size_t i = 0; i < 4; ++i) {
      CHECK(found[i] >= 0.0);
      if (!noisy) CHECK(std::fabs(found[i] - truth[i]) < 1e-6);
      for (const double step :
           {-1e-3, 1e-3}) {  // the function is convex: a point that no small step improves is its least
        auto near = found;
        near[i] += step;
        if (near[i] >= 0.0) CHECK(error(near) >= least - 1e-9);
      }
    }
  }
  LeastSquares<4> alike;  // two terms that always come together are not told apart, and one of them is enough
  for (int k = 1; k < 9; ++k) alike.add({1.0, 1.0 * k, 2.0 * k, 0.0}, 3.0 + 4.0 * k, 1.0, 1.0);
  const auto found = alike.solve();
  CHECK(std::fabs(found[0] - 3.0) < 1e-6 && std::fabs(found[1] + 2 * found[2] - 4.0) < 1e-6 && found[3] == 0.0);
  CHECK(LeastSquares<4>().solve() == (std::array<double, 4>{}));
}

int main() {
  least_squares();
  const CostFit::Terms truth{2e-3, 3e-5, 4e-9, 1e-5};
  auto seconds = [&](const CostFit::Terms& x) {
    double sum = 0.0;
    for (size_t i = 0; i < x.size(); ++i) sum += truth[i] * x[i];
    return sum;
  };
  auto near = [&](const CostFit::Terms& c, double by) {
    for (size_t i = 0; i < c.size(); ++i) {
      if (std::fabs(c[i] - truth[i]) > by * truth[i]) return false;
    }
    return true;
  };
  Random random{5};
  CostFit fit(512);
  for (const double taken : {0.0, -1.0, std::nan(""), HUGE_VAL}) fit.observe(work(random), taken);
  CHECK(fit.steps() == 0 && fit.fitted() == CostFit::Terms{});
  for (int step = 0; step < 200; ++step) {
    const CostFit::Terms x = work(random);
    fit.observe(x, seconds(x));
  }
  CHECK(fit.steps() == 200 && near(fit.fitted(), 1e-4));

  // A thousand times its prediction counts as four times: the same as the cut one, and far from the whole one.
  CostFit cut = fit, whole = fit;
  const CostFit::Terms x = work(random);
  const double expected = fit.predict(x);
  fit.observe(x, 1000 * expected);
  cut.add(x, CostFit::kOutlier * expected, 1.0);
  whole.add(x, 1000 * expected, 1.0);
  for (int64_t step = 0; step < CostFit::kRefit; ++step) {
    const CostFit::Terms y = work(random);
    fit.observe(y, seconds(y)), cut.observe(y, seconds(y)), whole.observe(y, seconds(y));
  }
  CHECK(fit.fitted() == cut.fitted() && fit.fitted() != whole.fitted());

  // Coefficients of an earlier fit stand until as many steps have been taken as there are between two solutions.
  CostFit started(64);
  started.start_from(truth, true);
  CHECK(started.steps() == CostFit::kTrusted);
  for (int64_t step = 1; step <= CostFit::kRefit; ++step) {
    CHECK(started.fitted() == truth);
    const CostFit::Terms y = work(random);
    started.observe(y, 2 * seconds(y));
  }
  CHECK(started.fitted() != truth);
  return 0;
}
