// The smallest possible test kit: CHECK counts, and main returns whether any failed.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

inline int failures = 0;

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) {                                                         \
      std::printf("%s:%d: CHECK(%s) failed\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                               \
    }                                                                           \
  } while (0)

// Rounds of a test that draws its texts. Code with sanitizers takes ten times as long, so it makes a tenth of them:
// the time of a test is bounded by its work.
constexpr int rounds(int all) {
#ifdef PRELUDE_SANITIZED
  return all / 10;
#else
  return all;
#endif
}

// Calls f once for each set of instructions that a tokenizer may be told to use.
template <class F>
void each_isa(F&& f) {
  for (const char* isa : {"scalar", "avx2", "avx512"}) {
    setenv("PRELUDE_TOKENIZER_ISA", isa, 1);
    f();
  }
  unsetenv("PRELUDE_TOKENIZER_ISA");
}

inline std::vector<std::string> split(std::string_view text, char by) {
  std::vector<std::string> out;
  for (size_t at = 0, end; at <= text.size(); at = end + 1) {
    end = std::min(text.find(by, at), text.size());
    out.emplace_back(text.substr(at, end - at));
  }
  return out;
}

inline int finish(const char* name) {
  std::printf("%s: %s\n", name, failures ? "FAILED" : "ok");
  return failures != 0;
}
