// The kernels as a table, and the choice among tables at run time. _native/cpu/kernels.cpp compiles them, once per
// instruction set from one source.
#pragma once

#include <cstdint>

#include "prelude/cpu/half.hpp"
#include "prelude/cpu/types.hpp"

namespace prelude::cpu {

struct Kernels {
  const char* name;
  int lanes;
  // Rows [first, last). `room` holds as many floats as row_floats() says.
  void (*rms_norm)(const NormArgs&, int64_t first, int64_t last, float* room);
  void (*norm_rotate)(const RotateArgs&, int64_t first, int64_t last, float* room);
  void (*activate)(const ActivateArgs&, int64_t first, int64_t last, float* room);
  void (*layer_norm)(const NormArgs&, int64_t first, int64_t last, float* room);
  // One unit; `runs` are its item's keys. A query of the plan sees those before `visible`, without the first `hidden`
  // ones; `hidden` may be null.
  void (*attend)(const AttentionShape&, const AttentionTensors&, const KeyRun* runs, const int32_t* visible,
                 const int32_t* hidden, const AttentionUnit&, float* room);
  // Query heads [first, last) of one decode row, all of one or several KV heads; `room` holds paged_room() floats.
  void (*attend_row)(const PagedArgs&, int64_t row, int first, int last, float* room);
  // Rows [first, last). `room`: kernel + 2 rows of `channels` floats.
  void (*convolve)(const ConvolveArgs&, const Segments&, int64_t first, int64_t last, float* room);
  void (*delta_inputs)(const DeltaInputArgs&, const Segments&, int64_t first, int64_t last, float* room);
  // See body_recurrent.hpp; `count` is at most lanes / 4.
  void (*delta)(const DeltaArgs&, const Segments&, const int32_t* members, int64_t num_members, const int32_t* kept,
                int64_t head, int64_t block, int count, float* room);
  void (*gate)(const GateArgs&, int64_t first, int64_t last, float* room);  // room: three rows
  int64_t (*unit_floats)(int64_t keys, const AttentionShape&);
  void (*exp)(const float* x, int64_t count, float* out);  // for tests: count is a multiple of `lanes`
  void (*exp_sum)(const float* x, int64_t count, float* most, double* total);  // see body_rows.hpp
  void (*widen)(const uint16_t* from, int64_t count, float* to);               // bfloat16 to float
  void (*narrow)(const float* from, int64_t count, uint16_t* to);              // ties to even
};

// How many of `count` values are NaN or infinite; Bits is of their size, `exponent` are the bits of their exponent.
template <class Bits>
int64_t count_not_finite(const Bits* values, int64_t count, Bits exponent) {
  int64_t found = 0;
  for (int64_t i = 0; i < count; ++i) found += (values[i] & exponent) == exponent;
  return found;
}

// The kernels of that name, or null where this machine cannot run them.
const Kernels* kernels_named(const char* name);

// The fastest kernels that this machine has, or those that PRELUDE_CPU_KERNELS names.
const Kernels& best_kernels();

inline void widen(const uint16_t* from, int64_t count, float* to) { best_kernels().widen(from, count, to); }
inline void narrow(const float* from, int64_t count, uint16_t* to) { best_kernels().narrow(from, count, to); }

}  // namespace prelude::cpu
