// Python's integers read where they lie. A list of ids is as many objects all over the heap, so the next ones are
// fetched while this one is read. Small integers are one digit in every version; others take the call.
#pragma once

#include <Python.h>

#include <cstdint>

namespace prelude::pylong {

// The value of an exact int, -1 for one that is negative or too large to matter.
inline int64_t value_of(PyObject* number) {
#if PY_VERSION_HEX >= 0x030C0000
  auto* const n = reinterpret_cast<PyLongObject*>(number);
  if (PyUnstable_Long_IsCompact(n)) return PyUnstable_Long_CompactValue(n);
#else
  const Py_ssize_t digits = Py_SIZE(number);
  if (digits == 1) return reinterpret_cast<PyLongObject*>(number)->ob_digit[0];
  if (digits == 0) return 0;
#endif
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
  return overflow != 0 || value < 0 ? -1 : value;
}

// Copies ids to `out`. False where one is no plain int or not in [0, limit).
inline bool copy_below(PyObject* const* items, Py_ssize_t n, int64_t limit, int32_t* out) {
  constexpr Py_ssize_t kAhead = 16;
  const int64_t most = limit > INT32_MAX ? int64_t{INT32_MAX} + 1 : limit;
  for (Py_ssize_t i = 0; i < n; ++i) {
#if defined(__GNUC__)
    if (i + kAhead < n) __builtin_prefetch(items[i + kAhead]);
#endif
    if (!PyLong_CheckExact(items[i])) return false;
    const int64_t value = value_of(items[i]);
    if (value < 0 || value >= most) return false;
    out[i] = static_cast<int32_t>(value);
  }
  return true;
}

}  // namespace prelude::pylong
