// A product of a few rows, cut over threads between outputs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>

#include "prelude/cpu/parallel.hpp"
#include "prelude/cpu/targets.hpp"
#include "prelude/status.hpp"

namespace prelude::cpu {

// A thread takes at least so many bytes of weights: some ten microseconds.
inline constexpr int64_t kPieceBytes = 1 << 18;

// Four rows take about a third of a nanosecond for four bytes of weights that lie in the cache.
inline bool worth_releasing_gil(const MatmulArgs& a) { return a.outputs * a.width / 8 > kReleaseGilNs; }

// False: no memory for the rows.
inline bool matmul(const Kernels& kernels, const MatmulArgs& a, int threads) {
  if (a.rows < 1 || a.outputs < 1) return true;
  const auto values = static_cast<size_t>(a.rows * a.width);
  float* room = nullptr;
  const float* x = static_cast<const float*>(a.x);
  if (a.type == Type::bf16 || (a.rows > 1 && a.x_stride != a.width)) {
    x = room = new (std::nothrow) float[values];
    if (room == nullptr) return false;
    for (int64_t row = 0; row < a.rows; ++row) {
      float* to = room + row * a.width;
      if (a.type == Type::f32) {
        const float* from = static_cast<const float*>(a.x) + row * a.x_stride;
        std::memcpy(to, from, static_cast<size_t>(a.width) * sizeof(float));
      } else {
        widen(static_cast<const uint16_t*>(a.x) + row * a.x_stride, a.width, to);
      }
    }
  }
  const int64_t bytes = a.outputs * a.width * size_of(a.type);
  const int64_t pieces = std::clamp<int64_t>(bytes / kPieceBytes, 1, std::max(threads, 1));
  const int64_t step = ((a.outputs + pieces - 1) / pieces + 7) / 8 * 8;
  run_pieces(static_cast<int>(pieces), (a.outputs + step - 1) / step,
             [&](int64_t i, int) { kernels.matmul(a, x, i * step, std::min(a.outputs, (i + 1) * step)); });
  delete[] room;
  return true;
}

}  // namespace prelude::cpu
