// Matching a pattern: a backtracking program over character classes that prefers left, like the engine it copies.
//
//   stack    (pc, position) still to try; a run of one set keeps [least, most] and gives back from the end
//   linear   a failed (pc, position) fails for ever: nothing is captured or referred back to. Once a text
//            costs more than a few steps a byte, failed states are kept in a bit map and never tried again;
//            inside a look-ahead also those that succeeded, so that it is decided once a position.
//   table    most patterns are also one (dfa.hpp), and then it does the work
//
//   No loop body matches the empty text (refused), so every cycle of the program moves on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "regex/charclass.hpp"
#include "regex/dfa.hpp"
#include "regex/regex_program.hpp"

namespace fasttoken {

// Scratch of one caller; any number of patterns may use it in turn.
struct RegexScratch {
  struct Frame {
    uint32_t pc, least, at, trail;
  };
  std::vector<uint8_t> classes;
  std::vector<Frame> stack;
  std::vector<std::pair<uint32_t, uint32_t>> trail;
  std::vector<uint64_t> failed, succeeded;
  bool remember = false;
  uint64_t steps = 0;
};

class Regex {
 public:
  Regex(std::string_view pattern, const std::string& path)
      : pattern_(pattern), program_(compile_regex(pattern, path)) {
    if (!program_.matches_empty) table_.build(program_.code, program_.classes);
  }

  Regex(const Regex&) = delete;  // the table points to the classes
  Regex& operator=(const Regex&) = delete;

  const std::string& pattern() const { return pattern_; }
  bool matches_empty() const { return program_.matches_empty; }

  const Dfa* table() const { return table_.built() ? &table_ : nullptr; }

  // Calls found(begin, end) for each match in turn; positions in bytes.
  template <class F>
  void each(std::string_view text, RegexScratch& s, F&& found) const {
    size_t from = table_.built() ? table_.each(text, found) : 0;
    if (from < text.size() || !table_.built()) search(text, s, found, static_cast<uint32_t>(from));
  }

  // The same by searching alone, from a position at which the last match ended.
  template <class F>
  void search(std::string_view text, RegexScratch& s, F&& found, uint32_t at = 0) const {
    program_.classes.classify(text, s.classes);
    s.remember = false;
    s.steps = 0;
    uint32_t n = static_cast<uint32_t>(text.size()), last = UINT32_MAX;
    const uint8_t* k = s.classes.data();
    while (at <= n) {
      uint32_t end = 0;
      if (!(program_.first >> k[at] & 1) || !match(k, n, at, end, s)) {
        if (at == n) return;
        at = step(k, at);
        continue;
      }
      if (end == at && last == at) {  // no empty match right after a match
        if (at == n) return;
        at = step(k, at);
        continue;
      }
      found(at, end);
      last = end;
      at = end;
    }
  }

 private:
  static constexpr uint8_t past = CharClasses::past, inside = CharClasses::inside;
  static constexpr uint32_t unlimited = UINT32_MAX;
  static constexpr uint32_t branch = 1u << 31;  // of a frame's pc: the other side of a split

  static uint32_t step(const uint8_t* k, uint32_t at) {
    do ++at;
    while (k[at] == inside);
    return at;
  }
  static uint32_t back(const uint8_t* k, uint32_t at) {
    do --at;
    while (k[at] == inside);
    return at;
  }

  bool match(const uint8_t* k, uint32_t n, uint32_t at, uint32_t& end, RegexScratch& s) const;
  // Runs from pc until match or leave; end gets the position. sub: inside a look-ahead.
  bool run(const uint8_t* k, uint32_t n, uint32_t pc, uint32_t at, uint32_t& end, RegexScratch& s, bool sub) const;
  bool allowed(const ReIns& i, const uint8_t* k, uint32_t n, uint32_t at) const;
  bool begin_run(const ReIns& i, const uint8_t* k, uint32_t n, uint32_t& pc, uint32_t& at, RegexScratch& s) const;
  bool resume(size_t base, const uint8_t* k, uint32_t& pc, uint32_t& at, RegexScratch& s) const;
  bool succeed(size_t base, size_t trail, uint32_t n, RegexScratch& s, bool sub) const;
  void start_remembering(uint32_t n, RegexScratch& s) const;
  bool mark_loop(const ReIns& i, uint32_t at, uint32_t n, RegexScratch& s) const;
  static size_t bit(uint32_t memo, uint32_t at, uint32_t n);
  static uint32_t trail_size(const RegexScratch& s);

  std::string pattern_;
  RegexProgram program_;
  Dfa table_;
};

}  // namespace fasttoken
