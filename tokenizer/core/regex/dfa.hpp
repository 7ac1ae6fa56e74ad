// A compiled pattern as a table: one look-up a character instead of a search.
//
//   state   an ordered list of places in the program, the preferred first, before the next character is seen
//   next_   state * 64 + class of the next character --> state | (a match may end before this character)
//
//   The order of a state's list is the order in which the backtracking engine would try: entries behind a
//   place that reached `match` is cut off, so the last match seen is the one the engine finds. Looking one
//   character ahead, as in \s+(?!\S), needs nothing more: the next character is known when a state is left.
//
//   Not for: atomic groups, assertions, looking behind, looking ahead further than one character, empty
//   matches, many states. build() then returns false, and the engine runs alone. A table has no memory of the
//   failed, so each() stops where a text makes it look ahead too often, and the engine takes over.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "regex/charclass.hpp"
#include "regex/regex_program.hpp"

namespace fasttoken {

class Dfa {
 public:
  bool build(const std::vector<ReIns>& program, const CharClasses& classes) {
    next_.clear();
    if (!supported(program) || program.size() >= 1u << 16) return false;
    classes_ = &classes;
    std::map<Threads, uint16_t> known;
    std::vector<Threads> states;
    auto number = [&](const Threads& t) {
      auto [at, fresh] = known.try_emplace(t, static_cast<uint16_t>(states.size()));
      if (fresh) states.push_back(t);
      return at->second;
    };
    number({});
    number({0});
    size_t work = 0;
    for (size_t s = 0; s < states.size(); ++s) {
      if (states.size() > most_states || work > most_work) {
        next_.clear();
        return false;
      }
      next_.resize((s + 1) * 64, 0);
      for (uint8_t k = 0; k <= CharClasses::past; ++k) {
        Walk walk{program, k, {}, {}, false};
        for (uint32_t thread : Threads(states[s]))
          if (!walk.visit(thread)) break;
        work += walk.seen.size() * walk.seen.size();
        next_[s * 64 + k] = static_cast<uint16_t>(number(walk.next) | (walk.matched ? match_bit : 0));
      }
    }
    return true;
  }
  bool built() const { return !next_.empty(); }

  // The end of the match that begins at `at`, or `at` where there is none; looked: up to where it had to look.
  size_t match(std::string_view text, size_t at, size_t& looked) const {
    const char *base = text.data(), *p = base + at, *end = base + text.size();
    size_t found = at;
    uint32_t state = 1;
    const uint16_t* next = next_.data();
    while (p < end) {
      const char* from = p;
      unsigned char b = static_cast<unsigned char>(*p);
      uint8_t k;
      if (b < 0x80) {
        k = classes_->ascii(b);
        ++p;
      } else {
        k = classes_->of(utf8_next(p));
      }
      uint32_t e = next[state * 64 + k];
      if (e & match_bit) found = static_cast<size_t>(from - base);
      state = e & ~uint32_t{match_bit};
      if (state == 0) {
        looked = static_cast<size_t>(p - base);
        return found;
      }
    }
    looked = text.size();
    if (next[state * 64 + CharClasses::past] & match_bit) found = text.size();
    return found;
  }

  // Calls found(begin, end) for each match in turn. Returns the end of the text, or where to go on searching.
  template <class F>
  size_t each(std::string_view text, F&& found) const {
    size_t spent = 0, looked = 0, limit = 64 + text.size() * 8;
    for (size_t at = 0; at < text.size();) {
      if (spent > limit) return at;
      size_t end = match(text, at, looked);
      spent += looked - at;
      if (end == at) {
        at += utf8_length(static_cast<unsigned char>(text[at]));
        continue;
      }
      found(static_cast<uint32_t>(at), static_cast<uint32_t>(end));
      at = end;
    }
    return text.size();
  }

 private:
  static constexpr uint16_t match_bit = 1u << 15;
  static constexpr size_t most_states = 250, most_work = 20'000'000;
  static constexpr uint32_t most_counted = 64;
  using Threads = std::vector<uint32_t>;  // pc | times a run went round << 16

  static bool supported(const std::vector<ReIns>& program) {
    for (size_t pc = 0; pc < program.size(); ++pc) {
      const ReIns& i = program[pc];
      switch (i.op) {
        case ReOp::ahead:
          if (program[pc + 1].op != ReOp::set || program[pc + 2].op != ReOp::leave) return false;
          break;
        case ReOp::run:
          if (i.x > most_counted || (i.y != UINT32_MAX && i.y > most_counted)) return false;
          break;
        case ReOp::atomic:
        case ReOp::assertion:
        case ReOp::behind:
          return false;
        default:
          break;
      }
    }
    return true;
  }

  // From one thread to all that take the next character, in order of preference.
  struct Walk {
    const std::vector<ReIns>& program;
    uint8_t k;
    Threads next, seen;
    bool matched;

    bool has(uint64_t mask) const { return mask >> k & 1; }
    void take(uint32_t thread) {
      if (std::find(next.begin(), next.end(), thread) == next.end()) next.push_back(thread);
    }
    // False: a match was reached, nothing behind it counts.
    bool visit(uint32_t thread) {
      if (std::find(seen.begin(), seen.end(), thread) != seen.end()) return true;
      seen.push_back(thread);
      uint32_t pc = thread & 0xFFFF, count = thread >> 16;
      const ReIns& i = program[pc];
      switch (i.op) {
        case ReOp::set:
          if (has(i.mask)) take(pc + 1);
          return true;
        case ReOp::run: {
          bool unlimited = i.y == UINT32_MAX, more = has(i.mask) && (unlimited || count < i.y), enough = count >= i.x;
          uint32_t again = pc | (unlimited ? std::min(count + 1, i.x) : count + 1) << 16;
          if (i.greed == ReGreed::lazy && enough && !visit(pc + 1)) return false;
          if (more) take(again);
          if (i.greed == ReGreed::lazy || !enough || (i.greed == ReGreed::possessive && more)) return true;
          return visit(pc + 1);
        }
        case ReOp::split:
          return visit(i.x) && visit(i.y);
        case ReOp::jump:
          return visit(i.x);
        case ReOp::ahead:
          return has(program[pc + 1].mask) == i.negative || visit(i.x);
        default:
          matched = true;
          return false;
      }
    }
  };

  const CharClasses* classes_ = nullptr;
  std::vector<uint16_t> next_;
};

}  // namespace fasttoken
