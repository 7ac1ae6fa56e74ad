// The normalizers of a file, flattened to a list of steps over one Text. Each rewrites the text with HF's rules of
// alignment, or leaves it untouched: a text that no step changes is never copied.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "memory/isa.hpp"
#include "split/blanks.hpp"
#include "split/pattern.hpp"
#include "text/charsmap.hpp"
#include "text/text.hpp"
#include "text/utf8.hpp"
#include "unicode/unicode.hpp"

namespace fasttoken {

// Which of 64 bytes begin a character that NFC may change, join or move, by Unicode::dirty_rows(); of characters of
// four bytes it may say so by mistake. 67 bytes can be read.
using DirtyOf = uint64_t (*)(const char* p, const uint64_t* rows);
DirtyOf dirty_finder(Isa isa);  // kernels.cpp has them

class Normalizer {
 public:
  struct Scratch {
    RegexScratch regex;
    ScratchVector<Changed> changed;
    std::vector<std::pair<uint32_t, uint32_t>> matches;
  };

  void read(const Json& json);

  bool empty() const { return steps_.empty(); }
  // Whether ASCII stays as it is.
  bool keeps_ascii() const {
    return all([](const Step& step) { return step.kind <= Kind::nfk; });
  }
  // Whether all steps change a character, a cluster, a match without blanks, or blanks that stand together
  // (blanks.hpp).
  bool works_between_blanks(std::string_view mark) const {
    return all([&](const Step& step) {
      if (step.kind == Kind::prepend || step.kind == Kind::byte_level) return false;
      if (step.kind != Kind::replace) return true;
      if (const Regex* regex = step.pattern.regex())
        return regex->pattern() == " {2,}" && (step.content == " " || step.content == mark);
      const std::string* text = step.pattern.fixed_text();
      return text && !text->empty() && has_no_blank(*text, mark);
    });
  }
  // Whether the steps of works_between_blanks() have no match but one of blanks.
  bool replaces_only_blanks() const {
    return all([](const Step& step) { return step.kind != Kind::replace || step.pattern.regex(); });
  }
  bool has_charsmap() const {
    return !all([](const Step& step) { return step.kind != Kind::charsmap; });
  }
  // Whether all that the steps of works_between_blanks() do with a character depends on its record alone.
  bool goes_by_record(uint32_t c) const {
    return !(ucd().quick(c) & (quick_canonical | quick_lower | quick_nfc)) && all([&](const Step& step) {
      return step.kind != Kind::nfk && (step.kind != Kind::charsmap || step.charsmap->keeps(c));
    });
  }
  // Whether none of the steps of works_between_blanks() asks for more white space than one character.
  bool keeps_white_space() const {
    return all([](const Step& step) {
      return step.kind != Kind::strip && (step.kind != Kind::replace || step.pattern.is_fixed());
    });
  }
  // Whether a mark is put before the text, where all that is done besides is to put one in the place of each space;
  // nothing where more or less is done.
  std::optional<bool> only_marks_spaces(std::string_view mark) const {
    const bool before = steps_.size() == 2 && steps_[0].kind == Kind::prepend && steps_[0].content == mark;
    if (steps_.size() != (before ? 2u : 1u)) return std::nullopt;
    const Step& spaces = steps_.back();
    if (spaces.kind != Kind::replace || spaces.content != mark || !spaces.pattern.is_text(" ")) return std::nullopt;
    return before;
  }
  void apply(Text& text, Scratch& scratch) const {
    run(text, scratch, [] { return true; });
  }
  // The same for a stretch between blanks; false: not known.
  bool apply_between(const Blanks& blanks, Text& text, Scratch& scratch) const {
    return run(text, scratch, [&] { return blanks.stand_apart(text.view()); });
  }

  static void replace(Text& text, const Pattern& pattern, std::string_view content, Scratch& scratch) {
    auto& found = scratch.matches;
    found.clear();
    size_t matched = 0;
    pattern.each(text.view(), scratch.regex, [&](uint32_t b, uint32_t e) {
      found.push_back({b, e});
      matched += e - b;
    });
    if (found.empty()) return;
    const size_t inserted = found.size() * content.size();
    if (inserted > matched) text.growth().require(inserted - matched);
    Rewrite out(text, text.view().size() + inserted);
    out.piece(text.whole());
    for (auto [begin, end] : found) {
      out.copy_to(begin);
      while (out.at() < end) out.skip();
      put_all(out, content, 1);
    }
    out.copy_to(text.view().size());
    out.finish();
  }

  static void prepend(Text& text, const Piece& whole, std::string_view content) {
    text.growth().require(content.size());
    Rewrite out(text, text.view().size() + content.size());
    out.piece(whole);
    put_prefix(out, text, whole, content);
    out.copy_to(whole.end);
    out.finish();
  }

  // The prefix takes the place of the first character, which is then put after it: all align to it.
  static void put_prefix(Rewrite& out, const Text& text, const Piece& piece, std::string_view content) {
    if (piece.begin == piece.end || content.empty()) return;
    uint32_t first = utf8_at(text.view().data() + piece.begin);
    bool replaced = false;
    for (const char *p = content.data(), *end = p + content.size(); p < end; replaced = true)
      out.put(utf8_next(p), replaced ? 1 : 0);
    out.put(first, 1);
  }

 private:
  enum class Kind : uint8_t { nfc, nfd, nfk, lowercase, strip, filter, replace, prepend, byte_level, cjk, charsmap };
  struct Step {
    Kind kind{};
    bool compose = false, left = false, right = false;
    uint16_t remove = 0, space = 0;
    uint8_t quick = 0;  // of a filter: Quick's answer for all characters that it changes, if there is one
    Pattern pattern;
    std::string content;
    std::shared_ptr<const Charsmap> charsmap;
  };

  template <class F>
  bool all(F&& holds) const {
    return std::all_of(steps_.begin(), steps_.end(), holds);
  }
  // go_on: asked before each step and behind the last. False: it said so.
  template <class F>
  bool run(Text& text, Scratch& scratch, F&& go_on) const {
    unsigned seen = unknown;
    for (const Step& step : steps_) {
      if (!go_on()) return false;
      take(step, text, scratch, seen);
    }
    return go_on();
  }
  static constexpr unsigned unknown = UINT32_MAX;
  // seen: at least Quick's answer for the characters there, once it was asked.
  static void take(const Step& step, Text& text, Scratch& scratch, unsigned& seen);
  static bool has_no_blank(std::string_view text, std::string_view mark) {
    for (const char *p = text.data(), *end = p + text.size(); p < end;)
      if (ucd().is(utf8_next(p), rust_space)) return false;
    return mark.empty() || text.find(mark) == std::string_view::npos;
  }

  static Step filter(uint16_t remove, uint16_t space) {
    Step step;
    step.kind = Kind::filter;
    step.remove = remove;
    step.space = space;
    step.quick = remove == bert_removed ? quick_clean : remove == mark_nonspacing ? quick_nonspacing : 0;
    return step;
  }

  static unsigned quick_of(std::string_view v) {
    const Unicode& u = ucd();
    unsigned all = 0;
    for (const char *p = v.data(), *end = p + v.size(); p < end;) all |= u.quick(utf8_next(p));
    return all;
  }

  void read_bert(const Json& json);

  static void put_all(Rewrite& out, std::string_view content, int32_t change) {
    for (const char *p = content.data(), *end = p + content.size(); p < end;) out.put(utf8_next(p), change);
  }

  static void nfc(Text& text, Scratch& s);

  // A character that neither decomposes nor is a mark is copied; marks are only ordered among themselves.
  static void nfd(Text& text, Scratch& s) {
    std::string_view v = text.view();
    const Unicode& u = ucd();
    const char *base = v.data(), *end = base + v.size();
    Rewrite out(text, v.size() + v.size() / 2 + 16);
    out.piece(text.whole());
    for (const char* p = base; p < end;) {
      const char* from = p;
      while (p < end && u.quick(utf8_at(p)) & (quick_canonical | quick_mark)) utf8_next(p);
      if (p == from) {
        utf8_next(p);
        continue;
      }
      out.copy_to(static_cast<size_t>(from - base));
      s.changed.clear();
      u.decomposed({from, static_cast<size_t>(p - from)}, false, s.changed);
      out.put_all(s.changed, static_cast<size_t>(p - base));
    }
    out.copy_to(v.size());
    out.finish();
  }

  static void nfk(Text& text, Scratch& s, bool compose) {
    std::string_view v = text.view();
    if (is_ascii(v)) return;
    s.changed.clear();
    ucd().decomposed(v, true, s.changed);
    if (compose) ucd().compose(s.changed);
    Rewrite out(text, v.size() + v.size() / 2);
    out.piece(text.whole());
    out.put_all(s.changed, v.size());
    out.finish();
  }

  // Calls put(out, c) for each character that changes(c), in whose place it writes others.
  template <class Changes, class Put>
  static void rewrite(Text& text, size_t reserve, Changes&& changes, Put&& put) {
    const std::string_view v = text.view();
    Rewrite out(text, reserve);
    out.piece(text.whole());
    bool changed = false;
    for (const char *p = v.data(), *end = p + v.size(); p < end;) {
      const char* from = p;
      const uint32_t c = utf8_next(p);
      if (!changes(c)) continue;
      changed = true;
      out.copy_to(static_cast<size_t>(from - v.data()));
      put(out, c);
    }
    if (!changed) return;
    out.copy_to(v.size());
    out.finish();
  }

  static void lowercase(Text& text) {
    const Unicode& u = ucd();
    rewrite(
        text, text.view().size() + 16, [&](uint32_t c) { return u.quick(c) & quick_lower; },
        [&](Rewrite& out, uint32_t c) {
          auto to = u.lower(c);
          for (size_t i = 0; i < to.size(); ++i) out.put(to[i], i > 0);
        });
  }

  static void strip(Text& text, bool left, bool right) {
    std::string_view v = text.view();
    const Unicode& u = ucd();
    const char *begin = v.data(), *end = begin + v.size();
    while (left && begin < end) {
      const char* p = begin;
      if (!u.is(utf8_next(p), rust_space)) break;
      begin = p;
    }
    while (right && end > begin) {
      const char* p = utf8_back(end);
      if (!u.is(utf8_at(p), rust_space)) break;
      end = p;
    }
    if (static_cast<size_t>(end - begin) == v.size()) return;
    Rewrite out(text, v.size());
    out.piece(text.whole());
    while (out.at() < static_cast<size_t>(begin - v.data())) out.skip();
    out.copy_to(static_cast<size_t>(end - v.data()));
    out.finish();
  }

  static void filter(Text& text, uint16_t remove, uint16_t space) {
    const Unicode& u = ucd();
    const uint16_t any = remove | space;
    rewrite(
        text, text.view().size(), [&](uint32_t c) { return c != ' ' && u.is(c, any); },
        [&](Rewrite& out, uint32_t c) {
          if (u.is(c, remove))
            out.skip();
          else
            out.put(' ', 0);
        });
  }

  static void chinese(Text& text) {
    const Unicode& u = ucd();
    rewrite(
        text, text.view().size() + text.view().size() / 2, [&](uint32_t c) { return u.quick(c) & quick_cjk; },
        [&](Rewrite& out, uint32_t c) {
          out.put(' ', 0);
          out.put(c, 1);
          out.put(' ', 1);
        });
  }

  static void byte_level(Text& text) {
    Rewrite out(text, text.view().size() * 2);
    out.piece(text.whole());
    put_byte_level(out, text.view());
    out.finish();
  }

 public:
  static void put_byte_level(Rewrite& out, std::string_view bytes) { out.put_bytes(bytes, byte_level_char); }

 private:
  std::vector<Step> steps_;
};

}  // namespace fasttoken
