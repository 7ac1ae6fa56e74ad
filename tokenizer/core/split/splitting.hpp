// From the matches of a pattern to pieces: HF's five behaviours for a match (the delimiter).
//
//   matches        the-final--countdown on "-"
//   Removed        the | final | countdown           Isolated            the | - | final | - | - | countdown
//   Contiguous     the | - | final | -- | countdown  MergedWithPrevious  the- | final- | - | countdown
//   MergedWithNext the | -final | - | -countdown
//
//   spans   cover the text in order; adjacent spans may both be matches, and a match may be empty
#pragma once

#include <cstdint>
#include <vector>

namespace fasttoken {

enum class Behavior : uint8_t { removed, isolated, contiguous, merged_with_previous, merged_with_next };

struct Span {
  uint32_t begin, end;
  bool match;
};

// The spans of a text of this length, given its matches in order.
class Spans {
 public:
  void start() {
    spans_.clear();
    at_ = 0;
  }
  void match(uint32_t begin, uint32_t end) {
    if (at_ != begin) spans_.push_back({at_, begin, false});
    spans_.push_back({begin, end, true});
    at_ = end;
  }
  void finish(uint32_t length) {
    if (at_ != length || length == 0) spans_.push_back({at_, length, false});
  }

  // Calls keep(begin, end) for the rest, empty spans included.
  template <class F>
  void resolve(Behavior behavior, bool invert, F&& keep) {
    if (invert)
      for (Span& s : spans_) s.match = !s.match;
    switch (behavior) {
      case Behavior::removed:
        for (const Span& s : spans_)
          if (!s.match) keep(s.begin, s.end);
        return;
      case Behavior::isolated:
        for (const Span& s : spans_) keep(s.begin, s.end);
        return;
      case Behavior::contiguous:
        return merged(keep, [](bool match, bool previous) { return match == previous; });
      case Behavior::merged_with_previous:
        return merged(keep, [](bool match, bool previous) { return match && !previous; });
      case Behavior::merged_with_next:
        return merged_back(keep);
    }
  }

 private:
  template <class F, class Joins>
  void merged(F&& keep, Joins&& joins) {
    bool previous = false, have = false;
    Span current{};
    for (const Span& s : spans_) {
      if (have && joins(s.match, previous)) {
        current.end = s.end;
      } else {
        if (have) keep(current.begin, current.end);
        current = s;
        have = true;
      }
      previous = s.match;
    }
    if (have) keep(current.begin, current.end);
  }

  template <class F>
  void merged_back(F&& keep) {
    bool previous = false;
    merged_.clear();
    for (size_t i = spans_.size(); i-- > 0;) {
      const Span& s = spans_[i];
      if (s.match && !previous && !merged_.empty())
        merged_.back().begin = s.begin;
      else
        merged_.push_back(s);
      previous = s.match;
    }
    for (size_t i = merged_.size(); i-- > 0;) keep(merged_[i].begin, merged_[i].end);
  }

  std::vector<Span> spans_, merged_;
  uint32_t at_ = 0;
};

}  // namespace fasttoken
