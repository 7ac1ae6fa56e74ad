// The cost model: exact steps are learnt, an outlier moves it little, coefficients are worked out anew when they are
// due.
#include <cmath>

#include "check.hpp"
#include "prelude/cost_fit.hpp"

using namespace prelude;

static CostFit::Terms work(Random& random) {
  return {1.0, static_cast<double>(1 + random.below(4000)), static_cast<double>(random.below(4'000'000)),
          static_cast<double>(random.below(64))};
}

int main() {
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
