// The pre-tokenizers of a file, flattened to steps; they cut a text into pieces, which ascend in the current text,
// and may rewrite the pieces.
//
//   A final ByteLevel rewrites nothing: its alphabet is a renaming of bytes that the model reads directly
//   (bytes_ready). Elsewhere in a sequence it is carried out.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/normalizers.hpp"

namespace fasttoken {

// How a file writes U+2581 for spaces, where all it does to a text before the model is that: its words are then cut
// and looked up in the text as it is.
struct SpaceMarks {
  // The texts that get a mark before them: none; the one at the text's first byte, if it does not begin with a space;
  // each text between added tokens that does not; each.
  enum class Prefix : uint8_t { none, first, each_without, each };

  Prefix prefix = Prefix::none;
  bool each_space = false;  // whether a piece begins at each space

  // Whether stretches between added tokens need no look at where they begin, but the text's first one.
  bool only_at_start() const { return prefix <= Prefix::first; }
  // base: where the stretch begins in the text. It is not empty and has no marks.
  bool puts_before(std::string_view stretch, uint32_t base) const {
    if (stretch[0] == ' ') return prefix == Prefix::each;
    return prefix >= Prefix::each_without || (prefix == Prefix::first && base == 0);
  }
};

enum class Behavior : uint8_t { removed, isolated, contiguous, merged_with_previous, merged_with_next };

class PreTokenizer {
 public:
  struct Scratch {
    Normalizer::Scratch normalizer;
    ScratchVector<Piece> pieces, cut;
  };

  void read(const Json& json);

  // After the last step was read. fuse: whether the model reads bytes.
  void finish_loading(bool fuse) {
    const auto is_bytes = [](const Step& step) { return step.kind == Kind::bytes; };
    bytes_ready_ = fuse && !steps_.empty() && is_bytes(steps_.back()) &&
                   std::count_if(steps_.begin(), steps_.end(), is_bytes) == 1;
    if (bytes_ready_) steps_.pop_back();
  }
  bool bytes_ready() const { return bytes_ready_; }
  // Whether a step asks where in the original its piece starts: of text that an earlier step may have rewritten.
  bool needs_shift() const { return needs_shift_; }
  bool needs_shift_of_rewritten() const { return follows_rewriting_; }
  // The patterns that cut a text one after the other, where each match and the texts between them are pieces; none
  // where more happens.
  std::vector<const Regex*> only_patterns() const {
    std::vector<const Regex*> all;
    if (!bytes_ready_) return all;
    for (const Step& step : steps_) {
      bool isolated = step.kind == Kind::split && step.behavior == Behavior::isolated && !step.invert;
      if (!isolated || !step.pattern.regex()) return {};
      all.push_back(step.pattern.regex());
    }
    return all;
  }

  // Whether all steps cut at characters alone, or mark white space, at most one of them (blanks.hpp).
  bool works_between_blanks() const {
    const auto marks = [](const Step& step) { return step.kind == Kind::metaspace; };
    return std::count_if(steps_.begin(), steps_.end(), marks) <= 1 &&
           std::all_of(steps_.begin(), steps_.end(), [&](const Step& step) {
             return step.kind == Kind::chars || step.kind == Kind::cut_chars || step.kind == Kind::words ||
                    (marks(step) && step.prepend != Prepend::first);
           });
  }
  // Whether white space parts the text, and is gone, before anything else is done.
  bool drops_white_space() const {
    if (steps_.empty()) return false;
    const Step& first = steps_[0];
    return (first.kind == Kind::cut_chars && (first.dropped & rust_space)) ||
           (first.kind == Kind::words && first.behavior == Behavior::removed);
  }
  // Whether all that is done to a text without white space and marks is to put a mark before it.
  bool only_puts_mark() const {
    return !steps_.empty() && steps_.back().kind == Kind::metaspace && steps_.back().prepend == Prepend::always &&
           (steps_.size() == 1 || (steps_.size() == 2 && steps_[0].kind == Kind::cut_chars && !steps_[0].flag &&
                                   steps_[0].dropped == rust_space));
  }
  // Of white space; empty where there is none.
  std::string_view mark() const {
    for (const Step& step : steps_)
      if (step.kind == Kind::metaspace) return step.content;
    return {};
  }
  // Whether a text without `text` in it stays whole.
  bool only_splits_at(std::string_view text) const {
    return std::all_of(steps_.begin(), steps_.end(), [&](const Step& step) {
      return step.kind == Kind::split && !step.invert && step.pattern.is_text(text);
    });
  }
  // How spaces are marked, where that is all that is done.
  std::optional<SpaceMarks> only_marks_spaces(std::string_view mark) const {
    if (steps_.size() != 1 || steps_[0].kind != Kind::metaspace || steps_[0].content != mark) return std::nullopt;
    using Prefix = SpaceMarks::Prefix;
    const Prefix prefix = steps_[0].prepend == Prepend::never   ? Prefix::none
                          : steps_[0].prepend == Prepend::first ? Prefix::first
                                                                : Prefix::each_without;
    return SpaceMarks{prefix, steps_[0].split};
  }

  // pieces holds the pieces to begin with and then the result; none is empty.
  void apply(Text& text, Scratch& s) const;

 private:
  enum class Kind : uint8_t {
    split,
    chars,
    cut_chars,
    delimiter,
    words,
    scripts,
    fixed_length,
    prefix_space,
    bytes,
    metaspace
  };
  enum class Prepend : uint8_t { always, first, never };
  struct Step {
    Kind kind{};
    Behavior behavior = Behavior::isolated;
    bool invert = false, split = true;
    Prepend prepend = Prepend::always;
    uint16_t flag = 0, dropped = 0;
    uint32_t character = 0, length = 0;
    Pattern pattern;
    std::string content;
  };

  static constexpr std::string_view gpt2 =
      "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

  static Behavior behavior(const Json& json) {
    static constexpr std::string_view names[] = {"Removed", "Isolated", "Contiguous", "MergedWithPrevious",
                                                 "MergedWithNext"};
    const auto at = std::find(std::begin(names), std::end(names), json.string());
    if (at != std::end(names)) return static_cast<Behavior>(at - std::begin(names));
    json.fail("not a behavior of a split");
  }

  void chars(uint16_t flag, Behavior behavior) {
    if (behavior == Behavior::removed) return cut_chars(flag, 0);
    if (behavior == Behavior::isolated) return cut_chars(0, flag);
    Step step;
    step.kind = Kind::chars;
    step.flag = flag;
    step.behavior = behavior;
    steps_.push_back(step);
  }
  // Characters with one of the dropped flags part the text and go; those with one of the kept are pieces.
  void cut_chars(uint16_t dropped, uint16_t kept) {
    Step step;
    step.kind = Kind::cut_chars;
    step.dropped = dropped;
    step.flag = kept;
    steps_.push_back(step);
  }

  void read_metaspace(const Json& json, Step& step);

  // Pieces from the matches of a pattern in one piece. Whether a span, a match or the text between two, belongs to
  // the one before it depends on these two alone.
  //
  //   matches        the-final--countdown on "-"
  //   removed        the | final | countdown           isolated            the | - | final | - | - | countdown
  //   contiguous     the | - | final | -- | countdown  merged_with_previous  the- | final- | - | countdown
  //   merged_with_next the | -final | - | -countdown
  struct Cutter {
    const Text& text;
    ScratchVector<Piece>& out;
    const Behavior behavior;
    const bool invert;
    const Piece piece;
    uint32_t at = 0, from = 0, to = 0;  // where the last match ends; the spans that are no piece yet
    bool last = false, any = false;     // whether the span before is a match, and whether there is one

    void match(uint32_t begin, uint32_t end) {
      if (at != begin) span(at, begin, false);
      span(begin, end, true);
      at = end;
    }
    void finish() {
      if (const uint32_t end = piece.end - piece.begin; at != end) span(at, end, false);
      put(from, to);
    }

   private:
    void span(uint32_t begin, uint32_t end, bool match) {
      match ^= invert;
      if (behavior == Behavior::isolated || (behavior == Behavior::removed && !match)) put(begin, end);
      if (behavior < Behavior::contiguous) return;
      const bool joins = behavior == Behavior::contiguous             ? match == last
                         : behavior == Behavior::merged_with_previous ? match && !last
                                                                      : last && !match;
      if (!any || !joins) {
        put(from, to);
        from = begin;
      }
      to = end;
      last = match;
      any = true;
    }
    void put(uint32_t begin, uint32_t end) const {
      if (begin < end) out.push_back(text.slice(piece.begin + begin, piece.begin + end, piece.shift));
    }
  };

  template <class F>
  static void split(Text& text, Scratch& s, const Step& step, F&& match) {
    s.cut.clear();
    for (const Piece& piece : s.pieces) {
      Cutter cutter{text, s.cut, step.behavior, step.invert, piece};
      match(text.view().substr(piece.begin, piece.end - piece.begin), cutter);
      cutter.finish();
    }
    std::swap(s.pieces, s.cut);
  }

  static void cut_chars(Text& text, Scratch& s, uint16_t dropped, uint16_t kept) {
    const Unicode& u = ucd();
    s.cut.clear();
    for (const Piece& piece : s.pieces) {
      const char *base = text.view().data(), *p = base + piece.begin, *from = p, *end = base + piece.end;
      auto cut = [&](const char* to) {
        if (from < to)
          s.cut.push_back(text.slice(static_cast<size_t>(from - base), static_cast<size_t>(to - base), piece.shift));
      };
      while (p < end) {
        const char* at = p;
        uint16_t flags = u.flags(utf8_next(p));
        if (!(flags & (dropped | kept))) continue;
        cut(at);
        from = flags & dropped ? p : at;
        cut(p);
        from = p;
      }
      cut(end);
    }
    std::swap(s.pieces, s.cut);
  }

  template <class F, class Out>
  static void each_char(std::string_view v, F&& holds, Out& spans) {
    for (const char *p = v.data(), *end = p + v.size(); p < end;) {
      const char* from = p;
      if (holds(utf8_next(p)))
        spans.match(static_cast<uint32_t>(from - v.data()), static_cast<uint32_t>(p - v.data()));
    }
  }

  // \w+|[^\w\s]+
  template <class Out>
  static void words(std::string_view v, Out& spans) {
    const char *p = v.data(), *from = p, *end = p + v.size();
    int kind = 0;  // of the run that began at from: 0 space, 1 word, 2 other
    auto shut = [&](const char* at) {
      if (kind) spans.match(static_cast<uint32_t>(from - v.data()), static_cast<uint32_t>(at - v.data()));
    };
    while (p < end) {
      const char* at = p;
      uint16_t flags = ucd().flags(utf8_next(p));
      int now = flags & rust_word ? 1 : flags & re_space ? 0 : 2;
      if (now == kind) continue;
      shut(at);
      kind = now;
      from = at;
    }
    shut(end);
  }

  // A piece goes on as long as the script does; characters without one (spaces, unassigned) belong to the script
  // before it, and is lost at the very beginning: so HF has it.
  template <class Out>
  static void scripts(std::string_view v, Out& spans) {
    using namespace tables;
    const char *p = v.data(), *end = p + v.size();
    uint32_t from = 0;
    unsigned run = 0;
    uint8_t last = 0;
    while (p < end) {
      uint32_t at = static_cast<uint32_t>(p - v.data()), c = utf8_next(p);
      if (c < cut_start[run] || (run + 1 < cut_start_size && c >= cut_start[run + 1]))
        run = static_cast<unsigned>(std::upper_bound(cut_start, cut_start + cut_start_size, c) - cut_start) - 1;
      uint8_t script = cut_value[run];
      if (script == 0 || script == last) continue;
      if (last) spans.match(from, at);
      from = at;
      last = script;
    }
    if (last) spans.match(from, static_cast<uint32_t>(v.size()));
  }

  // Rewrite each piece with f(out, piece); the pieces then cover the new text.
  template <class F>
  static void rewrite(Text& text, Scratch& s, size_t reserve, F&& f) {
    Rewrite out(text, reserve);
    for (Piece& piece : s.pieces) {
      uint32_t begin = static_cast<uint32_t>(out.written());
      Piece from = piece;
      out.piece(from);
      f(out, from);
      piece.begin = begin;
      piece.end = static_cast<uint32_t>(out.written());
    }
    out.finish();
  }

  static void prefix_space(Text& text, Scratch& s) {
    bool any = false;
    for (const Piece& p : s.pieces) any |= text.view()[p.begin] != ' ';
    if (!any) return;
    rewrite(text, s, text.view().size() + s.pieces.size(), [&](Rewrite& out, const Piece& p) {
      if (text.view()[p.begin] != ' ') Normalizer::put_prefix(out, text, p, " ");
      out.copy_to(p.end);
    });
  }

  static void bytes(Text& text, Scratch& s) {
    rewrite(text, s, text.view().size() * 2, [&](Rewrite& out, const Piece& p) {
      Normalizer::put_byte_level(out, text.view().substr(p.begin, p.end - p.begin));
    });
  }

  static void metaspace(Text& text, Scratch& s, const Step& step) {
    const std::string& mark = step.content;
    rewrite(text, s, text.view().size() + text.view().size() / 2, [&](Rewrite& out, const Piece& p) {
      std::string_view v = text.view().substr(p.begin, p.end - p.begin);
      bool starts = v[0] == ' ' || v.starts_with(mark);
      if (!starts && (step.prepend == Prepend::always || (step.prepend == Prepend::first && p.shift == 0)))
        Normalizer::put_prefix(out, text, p, mark);
      while (out.at() < p.end) {
        size_t space = text.view().find(' ', out.at());
        if (space >= p.end) break;
        out.copy_to(space);
        out.skip();
        out.put(step.character, 1);
      }
      out.copy_to(p.end);
    });
    if (!step.split) return;
    Step cut = step;
    cut.behavior = Behavior::merged_with_next;
    split(text, s, cut, [&](std::string_view v, auto& spans) {
      step.pattern.each(v, s.normalizer.regex, [&](uint32_t b, uint32_t e) { spans.match(b, e); });
    });
  }

  std::vector<Step> steps_;
  bool bytes_ready_ = false, needs_shift_ = false, follows_rewriting_ = false;
};

}  // namespace fasttoken
