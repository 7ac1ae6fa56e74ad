// The best non-negative solution: known ones are found again, and no other subset of terms does better.
#include "check.hpp"
#include "prelude/least_squares.hpp"

using namespace prelude;

static double uniform(Random& random) { return static_cast<double>(random.below(1'000'000)) / 1e6; }

int main() {
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
  return 0;
}
