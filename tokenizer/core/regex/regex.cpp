// Running the program of a pattern at one position; regex.hpp has the drawing.
#include "regex/regex.hpp"

#include <algorithm>

namespace fasttoken {

size_t Regex::bit(uint32_t memo, uint32_t at, uint32_t n) { return size_t{memo} * (size_t{n} + 1) + at; }

void Regex::start_remembering(uint32_t n, RegexScratch& s) const {
  size_t words = (size_t{program_.memos} * (size_t{n} + 1) + 63) / 64;
  s.failed.assign(words, 0);
  s.succeeded.assign(words, 0);
  s.trail.clear();
  for (auto& f : s.stack) f.trail = 0;
  s.remember = true;
}

bool Regex::match(const uint8_t* k, uint32_t n, uint32_t at, uint32_t& end, RegexScratch& s) const {
  s.stack.clear();
  s.trail.clear();
  return run(k, n, 0, at, end, s, false);
}

bool Regex::allowed(const ReIns& i, const uint8_t* k, uint32_t n, uint32_t at) const {
  auto word = [&](uint32_t p) { return program_.word >> k[p] & 1; };
  auto newline = [&](uint32_t p) { return program_.newline >> k[p] & 1; };
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
bool Regex::run(const uint8_t* k, uint32_t n, uint32_t pc, uint32_t at, uint32_t& end, RegexScratch& s,
                bool sub) const {
  size_t base = s.stack.size(), trail = s.trail.size();
  const ReIns* code = program_.code.data();
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

uint32_t Regex::trail_size(const RegexScratch& s) { return static_cast<uint32_t>(s.trail.size()); }

// The positions still on the trail led to success: they did not fail.
bool Regex::succeed(size_t base, size_t trail, uint32_t n, RegexScratch& s, bool sub) const {
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
bool Regex::mark_loop(const ReIns& i, uint32_t at, uint32_t n, RegexScratch& s) const {
  size_t b = bit(i.memo + 1, at, n);
  uint64_t m = uint64_t{1} << (b & 63);
  if (s.failed[b >> 6] & m) return false;
  s.failed[b >> 6] |= m;
  s.trail.push_back({i.memo + 1, at});
  return true;
}

bool Regex::begin_run(const ReIns& i, const uint8_t* k, uint32_t n, uint32_t& pc, uint32_t& at,
                      RegexScratch& s) const {
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
        break;  // from there on it failed before: give back the part before it
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
bool Regex::resume(size_t base, const uint8_t* k, uint32_t& pc, uint32_t& at, RegexScratch& s) const {
  if (s.stack.size() == base) return false;
  auto& frame = s.stack.back();
  if (s.remember && s.trail.size() > frame.trail) s.trail.resize(frame.trail);
  if (frame.pc & branch) {
    pc = frame.pc & ~branch;
    at = frame.at;
    s.stack.pop_back();
    return true;
  }
  const ReIns& i = program_.code[frame.pc];
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

}  // namespace fasttoken
