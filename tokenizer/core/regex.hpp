// Matching a pattern: a backtracking program over character classes, with a memory that makes it linear.
//
//   text     H e l l o _ w ...      classes   3 4 4 4 4 1 4 ...        (charclass.hpp)
//   program  split | set | run | ahead ... match                      prefers left, like the engine it copies
//   stack    (pc, position) still to try; a run of one set keeps [least, most] and gives back from the end
//
//   linear   a failed (pc, position) fails for ever: nothing is captured or referred back to. Once a text
//            costs more than a few steps a byte, failed states are kept in a bit map and never tried again;
//            inside a look-ahead also those that succeeded, so that it is decided once a position.
//   table    most patterns are also one (dfa.hpp), and then it does the work
//
//   invariants   no loop body matches the empty text (refused), so every cycle of the program moves on;
//                recursion only by the nesting of look-aheads and atomic groups in the pattern
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "charclass.hpp"
#include "dfa.hpp"
#include "regex_program.hpp"

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
  Regex(std::string_view pattern, const std::string& path) : pattern_(pattern), path_(path) {
    ReNode root = RegexParser(pattern, path).parse();
    collect(root);
    if (!classes_.build(sets_)) refuse("too many distinct character sets");
    first_ = first(root).first;
    matches_empty_ = nullable(root);
    if (matches_empty_) first_ = ~0ull;
    emit(root, ~0ull);
    add(ReIns(ReOp::match));
    for (ReIns& i : program_)
      if (i.op == ReOp::split || i.op == ReOp::run || i.op == ReOp::ahead) {
        i.memo = memos_;
        memos_ += i.op == ReOp::run ? 2 : 1;  // a run also remembers the states of its loop
      }
    if (!matches_empty_) table_.build(program_, classes_);
    for (size_t i = 0; i < sets_.size(); ++i) {
      if (sets_[i].same(CharSet::one('\n'))) mask_of_newline_ = classes_.mask(i);
      if (sets_[i].same(CharSet::flagged(onig_word))) mask_of_word_ = classes_.mask(i);
    }
  }

  Regex(const Regex&) = delete;  // the table points to the classes
  Regex& operator=(const Regex&) = delete;

  const std::string& pattern() const { return pattern_; }
  bool matches_empty() const { return matches_empty_; }

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
    classes_.classify(text, s.classes);
    s.remember = false;
    s.steps = 0;
    uint32_t n = static_cast<uint32_t>(text.size()), last = UINT32_MAX;
    const uint8_t* k = s.classes.data();
    while (at <= n) {
      uint32_t end = 0;
      if (!(first_ >> k[at] & 1) || !match(k, n, at, end, s)) {
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

  [[noreturn]] void refuse(const std::string& what) const {
    throw Unsupported("a pattern with " + what + ": " + pattern_, path_, true);
  }

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

  // ---- compiling

  uint32_t number(const CharSet& set) {
    for (uint32_t i = 0; i < sets_.size(); ++i)
      if (sets_[i].same(set)) return i;
    sets_.push_back(set);
    return static_cast<uint32_t>(sets_.size() - 1);
  }
  void collect(const ReNode& node) {
    if (node.kind == ReKind::set || node.kind == ReKind::behind) number(node.set);
    if (node.kind == ReKind::assertion) {
      number(CharSet::one('\n'));
      if (node.assertion == ReAssert::word || node.assertion == ReAssert::not_word)
        number(CharSet::flagged(onig_word));
    }
    for (const ReNode& part : node.parts) collect(part);
  }
  uint64_t mask(const CharSet& set) { return classes_.mask(number(set)); }

  static bool nullable(const ReNode& node) {
    switch (node.kind) {
      case ReKind::set:
        return false;
      case ReKind::repeat:
        return node.min == 0 || nullable(node.parts[0]);
      case ReKind::alt:
        for (const ReNode& p : node.parts)
          if (nullable(p)) return true;
        return false;
      case ReKind::seq:
        for (const ReNode& p : node.parts)
          if (!nullable(p)) return false;
        return true;
      case ReKind::atomic:
        return nullable(node.parts[0]);
      default:
        return true;
    }
  }

  // What a match of the node can begin with; second: whether it may also match nothing.
  std::pair<uint64_t, bool> first(const ReNode& node) {
    switch (node.kind) {
      case ReKind::set:
        return {mask(node.set), false};
      case ReKind::repeat: {
        if (node.max == 0) return {0, true};
        auto f = first(node.parts[0]);
        return {f.first, f.second || node.min == 0};
      }
      case ReKind::atomic:
        return first(node.parts[0]);
      case ReKind::alt: {
        std::pair<uint64_t, bool> all{0, false};
        for (const ReNode& p : node.parts) {
          auto f = first(p);
          all.first |= f.first;
          all.second |= f.second;
        }
        return all;
      }
      case ReKind::seq: {
        uint64_t all = 0;
        for (const ReNode& p : node.parts) {
          auto f = first(p);
          all |= f.first;
          if (!f.second) return {all, false};
        }
        return {all, true};
      }
      default:
        return {0, true};
    }
  }

  uint32_t add(ReIns i) {
    if (program_.size() > 20000) refuse("too large a program");
    program_.push_back(i);
    return static_cast<uint32_t>(program_.size() - 1);
  }
  uint32_t here() const { return static_cast<uint32_t>(program_.size()); }

  // follow: what can come after the node; ~0 when anything can, the end included.
  void emit(const ReNode& node, uint64_t follow) {
    switch (node.kind) {
      case ReKind::set: {
        ReIns i{ReOp::set};
        i.mask = mask(node.set);
        add(i);
        return;
      }
      case ReKind::seq: {
        for (size_t p = 0; p < node.parts.size(); ++p) {
          uint64_t after = 0;
          bool open = true;
          for (size_t q = p + 1; q < node.parts.size() && open; ++q) {
            auto f = first(node.parts[q]);
            after |= f.first;
            open = f.second;
          }
          emit(node.parts[p], open ? after | follow : after);
        }
        return;
      }
      case ReKind::alt:
        return emit_alt(node, follow);
      case ReKind::repeat:
        return emit_repeat(node, follow);
      case ReKind::ahead:
      case ReKind::atomic: {
        ReIns i{node.kind == ReKind::ahead ? ReOp::ahead : ReOp::atomic};
        i.negative = node.negative;
        uint32_t at = add(i);
        emit(node.parts[0], ~0ull);
        add(ReIns(ReOp::leave));
        program_[at].x = here();
        return;
      }
      case ReKind::assertion: {
        ReIns i{ReOp::assertion};
        i.assertion = node.assertion;
        add(i);
        return;
      }
      case ReKind::behind: {
        ReIns i{ReOp::behind};
        i.negative = node.negative;
        i.mask = mask(node.set);
        add(i);
        return;
      }
    }
  }

  uint64_t begins(const ReNode& node, uint64_t follow) {
    auto f = first(node);
    return f.second ? f.first | follow | ~CharClasses::every : f.first;
  }

  void emit_alt(const ReNode& node, uint64_t follow) {
    std::vector<uint32_t> ends;
    for (size_t p = 0; p < node.parts.size(); ++p) {
      uint32_t fork = 0;
      bool last = p + 1 == node.parts.size();
      if (!last) {
        ReIns i{ReOp::split};
        i.mask = begins(node.parts[p], follow);
        i.other = 0;
        for (size_t q = p + 1; q < node.parts.size(); ++q) i.other |= begins(node.parts[q], follow);
        fork = add(i);
        program_[fork].x = here();
      }
      emit(node.parts[p], follow);
      if (!last) {
        ends.push_back(add(ReIns(ReOp::jump)));
        program_[fork].y = here();
      }
    }
    for (uint32_t e : ends) program_[e].x = here();
  }

  void emit_repeat(const ReNode& node, uint64_t follow) {
    const ReNode& body = node.parts[0];
    if (node.max == 0) return;
    if (body.kind == ReKind::set) {
      ReIns i{ReOp::run};
      i.greed = node.greed;
      i.mask = mask(body.set);
      i.x = node.min;
      i.y = node.max;
      if (i.greed == ReGreed::greedy && !(i.mask & follow)) i.greed = ReGreed::possessive;
      add(i);
      return;
    }
    if (nullable(body) && node.max > 1) refuse("a repetition of what may be empty");
    if (node.greed == ReGreed::possessive) {
      uint32_t at = add(ReIns(ReOp::atomic));
      emit_loop(node, body, ~0ull, true);
      add(ReIns(ReOp::leave));
      program_[at].x = here();
      return;
    }
    emit_loop(node, body, follow, node.greed != ReGreed::lazy);
  }

  void emit_loop(const ReNode& node, const ReNode& body, uint64_t follow, bool greedy) {
    uint64_t begin = begins(body, follow), after = follow;
    auto fork = [&] {
      ReIns i{ReOp::split};
      i.mask = greedy ? begin : after;
      i.other = greedy ? after : begin;
      return add(i);
    };
    auto set_exit = [&](uint32_t at, uint32_t in, uint32_t out) {
      program_[at].x = greedy ? in : out;
      program_[at].y = greedy ? out : in;
    };
    for (uint32_t i = 0; i < node.min; ++i) emit(body, begin | follow);
    if (node.max == unlimited) {
      uint32_t at = fork();
      emit(body, begin | follow);
      uint32_t loop = add(ReIns(ReOp::jump));
      program_[loop].x = at;
      set_exit(at, at + 1, here());
      return;
    }
    std::vector<uint32_t> forks;
    for (uint32_t i = node.min; i < node.max; ++i) {
      forks.push_back(fork());
      emit(body, begin | follow);
    }
    for (uint32_t at : forks) set_exit(at, at + 1, here());
  }

  // ---- matching

  static size_t bit(uint32_t memo, uint32_t at, uint32_t n) { return size_t{memo} * (size_t{n} + 1) + at; }

  void start_remembering(uint32_t n, RegexScratch& s) const {
    size_t words = (size_t{memos_} * (size_t{n} + 1) + 63) / 64;
    s.failed.assign(words, 0);
    s.succeeded.assign(words, 0);
    s.trail.clear();
    for (auto& f : s.stack) f.trail = 0;
    s.remember = true;
  }

  bool match(const uint8_t* k, uint32_t n, uint32_t at, uint32_t& end, RegexScratch& s) const {
    s.stack.clear();
    s.trail.clear();
    return run(k, n, 0, at, end, s, false);
  }

  bool allowed(const ReIns& i, const uint8_t* k, uint32_t n, uint32_t at) const {
    auto word = [&](uint32_t p) { return mask_of_word_ >> k[p] & 1; };
    auto newline = [&](uint32_t p) { return mask_of_newline_ >> k[p] & 1; };
    switch (i.assertion) {
      case ReAssert::line_start:
        return at == 0 || (at < n && newline(back(k, at)));
      case ReAssert::line_end:
        return at == n || newline(at);
      case ReAssert::text_start:
        return at == 0;
      case ReAssert::text_end:
        return at == n;
      case ReAssert::text_end_line:
        return at == n || (at + 1 == n && newline(at));
      case ReAssert::word:
      case ReAssert::not_word: {
        bool before = at > 0 && word(back(k, at)), after = at < n && word(at);
        return (before != after) == (i.assertion == ReAssert::word);
      }
    }
    return false;
  }

  // Runs from pc until match or leave; end gets the position. sub: inside a look-ahead.
  bool run(const uint8_t* k, uint32_t n, uint32_t pc, uint32_t at, uint32_t& end, RegexScratch& s, bool sub) const {
    size_t base = s.stack.size(), trail = s.trail.size();
    const ReIns* code = program_.data();
    for (;;) {
      const ReIns& i = code[pc];
      bool ok = true;
      if (i.memo != UINT32_MAX) {
        if (++s.steps > 64 + uint64_t{n} * 24 && !s.remember) {
          start_remembering(n, s);
          trail = 0;
        }
        if (s.remember) {
          size_t b = bit(i.memo, at, n);
          uint64_t m = uint64_t{1} << (b & 63);
          if (sub && (s.succeeded[b >> 6] & m)) return succeed(base, trail, n, s, true);
          if (s.failed[b >> 6] & m) {
            ok = false;
          } else {
            s.failed[b >> 6] |= m;
            s.trail.push_back({i.memo, at});
          }
        }
      }
      if (ok) {
        switch (i.op) {
          case ReOp::set:
            ok = i.mask >> k[at] & 1;
            if (ok) {
              at = step(k, at);
              ++pc;
            }
            break;
          case ReOp::run:
            ok = begin_run(i, k, n, pc, at, s);
            break;
          case ReOp::split: {
            uint64_t bit_of = uint64_t{1} << k[at];
            bool left = i.mask & bit_of, right = i.other & bit_of;
            if (left && right) s.stack.push_back({i.y | branch, 0, at, trail_size(s)});
            if (left)
              pc = i.x;
            else if (right)
              pc = i.y;
            else
              ok = false;
            break;
          }
          case ReOp::jump:
            pc = i.x;
            break;
          case ReOp::ahead: {
            uint32_t ignored = 0;
            ok = run(k, n, pc + 1, at, ignored, s, true) != i.negative;
            if (ok) pc = i.x;
            break;
          }
          case ReOp::atomic: {
            uint32_t past_it = 0;
            ok = run(k, n, pc + 1, at, past_it, s, false);
            if (ok) {
              at = past_it;
              pc = i.x;
            }
            break;
          }
          case ReOp::assertion:
            ok = allowed(i, k, n, at);
            if (ok) ++pc;
            break;
          case ReOp::behind: {
            bool is = at > 0 && (i.mask >> k[back(k, at)] & 1);
            ok = is != i.negative;
            if (ok) ++pc;
            break;
          }
          case ReOp::leave:
          case ReOp::match:
            end = at;
            return succeed(base, trail, n, s, sub);
        }
      }
      if (ok) continue;
      if (!resume(base, k, pc, at, s)) {
        if (s.remember) s.trail.resize(std::min(trail, s.trail.size()));
        return false;
      }
    }
  }

  static uint32_t trail_size(const RegexScratch& s) { return static_cast<uint32_t>(s.trail.size()); }

  // What is still on the trail led to success: it did not fail.
  bool succeed(size_t base, size_t trail, uint32_t n, RegexScratch& s, bool sub) const {
    s.stack.resize(base);
    if (s.remember) {
      for (size_t t = std::min(trail, s.trail.size()); t < s.trail.size(); ++t) {
        size_t b = bit(s.trail[t].first, s.trail[t].second, n);
        s.failed[b >> 6] &= ~(uint64_t{1} << (b & 63));
        if (sub) s.succeeded[b >> 6] |= uint64_t{1} << (b & 63);
      }
      s.trail.resize(std::min(trail, s.trail.size()));
    }
    return true;
  }

  // Marks the loop state (run, position); false if it was there: all that follows from it failed before.
  bool mark_loop(const ReIns& i, uint32_t at, uint32_t n, RegexScratch& s) const {
    size_t b = bit(i.memo + 1, at, n);
    uint64_t m = uint64_t{1} << (b & 63);
    if (s.failed[b >> 6] & m) return false;
    s.failed[b >> 6] |= m;
    s.trail.push_back({i.memo + 1, at});
    return true;
  }

  bool begin_run(const ReIns& i, const uint8_t* k, uint32_t n, uint32_t& pc, uint32_t& at, RegexScratch& s) const {
    uint32_t count = 0, p = at;
    while (count < i.x && (i.mask >> k[p] & 1)) {
      p = step(k, p);
      ++count;
    }
    if (count < i.x) return false;
    uint32_t least = p;
    if (i.greed != ReGreed::lazy) {
      bool keep = s.remember && i.y == unlimited;
      if (keep && !mark_loop(i, p, n, s)) return false;
      while (count < i.y && (i.mask >> k[p] & 1)) {
        uint32_t next = step(k, p);
        if (keep && !mark_loop(i, next, n, s)) {
          if (i.greed == ReGreed::possessive) return false;
          break;  // from there on it failed before: give back what lies before it
        }
        p = next;
        ++count;
      }
    }
    s.steps += count;
    if (i.greed == ReGreed::greedy && p > least) s.stack.push_back({pc, least, p, trail_size(s)});
    if (i.greed == ReGreed::lazy && count < i.y && (i.mask >> k[p] & 1))
      s.stack.push_back({pc, i.y == unlimited ? unlimited : i.y - count, p, trail_size(s)});
    at = p;
    ++pc;
    return true;
  }

  // Take the next thing to try off the stack; false when there is none above base.
  bool resume(size_t base, const uint8_t* k, uint32_t& pc, uint32_t& at, RegexScratch& s) const {
    if (s.stack.size() == base) return false;
    auto& frame = s.stack.back();
    if (s.remember && s.trail.size() > frame.trail) s.trail.resize(frame.trail);
    if (frame.pc & branch) {
      pc = frame.pc & ~branch;
      at = frame.at;
      s.stack.pop_back();
      return true;
    }
    const ReIns& i = program_[frame.pc];
    pc = frame.pc + 1;
    if (i.greed == ReGreed::lazy) {
      ++s.steps;
      at = frame.at = step(k, frame.at);
      bool more = frame.least == unlimited || --frame.least > 0;
      if (!more || !(i.mask >> k[at] & 1)) s.stack.pop_back();
      return true;
    }
    at = frame.at = back(k, frame.at);
    if (s.remember && i.y == unlimited && frame.trail > 0) s.trail.resize(--frame.trail);
    ++s.steps;
    if (frame.at <= frame.least) s.stack.pop_back();
    return true;
  }

  std::string pattern_, path_;
  std::vector<CharSet> sets_;
  CharClasses classes_;
  std::vector<ReIns> program_;
  Dfa table_;
  uint64_t first_ = ~0ull, mask_of_word_ = 0, mask_of_newline_ = 0;
  uint32_t memos_ = 0;
  bool matches_empty_ = false;
};

}  // namespace fasttoken
