// The smallest possible test kit: CHECK counts, and main returns whether any failed.
#pragma once

#include <cstdio>
#include <string>

inline int failures = 0;

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) {                                                         \
      std::printf("%s:%d: CHECK(%s) failed\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                               \
    }                                                                           \
  } while (0)

template <class Error, class F>
bool throws(F&& f) {
  try {
    f();
  } catch (const Error&) {
    return true;
  } catch (...) {
  }
  return false;
}

// Rounds of a test that draws its texts. Code with sanitizers takes ten times as long, so it makes a tenth of them:
// the time of a test is bounded by its work.
constexpr int rounds(int all) {
#ifdef PRELUDE_SANITIZED
  return all / 10;
#else
  return all;
#endif
}

inline int finish(const char* name) {
  std::printf("%s: %s\n", name, failures ? "FAILED" : "ok");
  return failures != 0;
}
