// sentencepiece's precompiled map of characters, as HF applies it.
//
//   file    base64 of: bytes of the trie (4), the trie's units (4 each), texts that each end in a zero
//   unit    darts-clone's: label, whether a value follows, offset of the children; a value is the place of a text
//   text    each grapheme cluster of at most five bytes is looked up whole. The characters of a cluster that is not
//           found, and of a longer one, are looked up one by one. The text of the shortest key at the start takes the
//           place of the whole cluster or character, also of bytes that the key does not have
//
//   invariants   no walk leaves the trie and no value leaves the texts: a map where one can is not taken
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "errors.hpp"
#include "text/bmp_set.hpp"
#include "text/text.hpp"
#include "unicode/graphemes.hpp"

namespace fasttoken {

class Charsmap {
 public:
  // Nothing for a text that is no such map, or one past a bound. broken: a look-up may lead out of it, and HF panics.
  static std::optional<Charsmap> read(std::string_view base64, bool& broken) {
    std::optional<std::string> raw = decoded(base64);
    if (!raw || raw->size() < 4) return std::nullopt;
    const size_t size = unit_at(*raw, 0);
    if (size % 4 || size > raw->size() - 4 || size / 4 > most_units) return std::nullopt;
    Charsmap made;
    for (size_t at = 4; at < 4 + size; at += 4) made.units_.push_back(unit_at(*raw, at));
    made.texts_ = raw->substr(4 + size);
    if ((broken = !made.is_sound()) || !made.has_short_texts()) return std::nullopt;
    made.index_characters();
    return made;
  }

  void apply(Text& text) const {
    const std::string_view v = text.view();
    const Graphemes& clusters = graphemes();
    const char *const base = v.data(), *const end = base + v.size(), *done = base;
    std::optional<Rewriter> out;
    const auto replace = [&](const char* from, const char* to, std::string_view made) {
      if (!out) out.emplace(text);
      out->keep(static_cast<size_t>(done - base), static_cast<size_t>(from - base));
      out->replace(utf8_count({from, to}), made);
      done = to;
    };
    for (const char* p = base; p < end;) {
      const char* const run = p;
      p = calm_.span(p, end, [] {});
      if (p == end) break;
      if (p > run) p = utf8_back(p);  // it may be in a cluster with the next one
      const char* const stop = clusters.next(p, end);
      std::string_view made;
      if (stop - p < 6 && find({p, stop}, made)) {
        replace(p, stop, made);
      } else if (static_cast<size_t>(stop - p) > utf8_length(static_cast<unsigned char>(*p))) {
        for (const char *c = p, *next; c < stop; c = next) {
          next = c + utf8_length(static_cast<unsigned char>(*c));
          if (!keeps(utf8_at(c)) && find({c, next}, made)) replace(c, next, made);
        }
      }
      p = stop;
    }
    if (!out) return;
    out->keep(static_cast<size_t>(done - base), v.size());
    out->finish();
  }

  // Whether no key is a beginning of the character; false for those of four bytes.
  bool keeps(uint32_t c) const { return kept_.has(c); }

 private:
  // Characters with HF's numbers: where a text is longer than the characters that it replaces, its last ones are
  // inserted. Where it is shorter, the last character that was put takes the place of the others too; at the start of
  // the text none does.
  class Rewriter {
   public:
    explicit Rewriter(Text& text)
        : source_(text.view()), aligned_(text.wants_align()), out_(text, source_.size() + source_.size() / 8 + 16) {
      out_.piece(text.whole());
    }
    void keep(size_t from, size_t to) {
      if (from == to) return;
      put_last();
      if (!aligned_) return out_.take(from, to);
      const char* const last = utf8_back(source_.data() + to);
      out_.take(from, static_cast<size_t>(last - source_.data()));
      last_ = {utf8_at(last), 0, 0};
    }
    void replace(size_t characters, std::string_view made) {
      const int32_t before = static_cast<int32_t>(characters), after = static_cast<int32_t>(utf8_count(made));
      int32_t i = 0;
      for (const char *p = made.data(), *end = p + made.size(); p < end; ++i) {
        put_last();
        last_ = {utf8_next(p), i >= before ? 1 : 0, 0};
      }
      if (after < before && last_) last_->change += after - before;
    }
    void finish() {
      put_last();
      out_.finish();
    }

   private:
    void put_last() {
      if (last_) out_.put(last_->c, last_->change);
      last_.reset();
    }
    std::string_view source_;
    const bool aligned_;
    Rewrite out_;
    std::optional<Changed> last_;  // not yet put: the next characters may be removed
  };

  void index_characters() {
    kept_.add_all();
    forget(offset(units_[0]), 0, 0x00, 0x80, 0);
    forget(offset(units_[0]), 0, 0xC0, 0xE0, 1);
    forget(offset(units_[0]), 0, 0xE0, 0xF0, 2);
    kept_.remove('\r');  // it may be in a cluster
    calm_ = kept_;
    for (uint32_t c = 0x80; c < BmpSet::end; ++c)
      if (graphemes().flags(c) & joins_others) calm_.remove(c);
  }
  // The characters that begin with a key: `begun` is the bits of their first bytes, read up to `at`, the next is from
  // .. to, and `more` come behind it.
  void forget(uint32_t at, uint32_t begun, uint32_t from, uint32_t to, int more) {
    for (uint32_t byte = std::max(from, 1u); byte < to; ++byte) {
      const uint32_t unit = units_[at ^ byte];
      if (label(unit) != byte) continue;
      const uint32_t bits = begun << 6 | (byte - from);  // the bits of a byte of this place
      if (has_value(unit))
        for (uint32_t c = bits << (6 * more); c < (bits + 1) << (6 * more); ++c) kept_.remove(c);
      else if (more)
        forget(at ^ byte ^ offset(unit), bits, 0x80, 0xC0, more - 1);
    }
  }

  static constexpr size_t most_units = size_t{1} << 22;

  static uint32_t unit_at(const std::string& raw, size_t at) {
    uint32_t value = 0;
    for (size_t i = 4; i-- > 0;) value = value << 8 | static_cast<unsigned char>(raw[at + i]);
    return value;
  }

  static std::optional<std::string> decoded(std::string_view base64) {
    if (base64.size() % 4) return std::nullopt;
    size_t padding = 0;
    while (padding < 2 && base64.ends_with('=')) {
      base64.remove_suffix(1);
      ++padding;
    }
    std::array<int8_t, 256> values;
    values.fill(-1);
    static constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < digits.size(); ++i) values[static_cast<unsigned char>(digits[i])] = static_cast<int8_t>(i);
    std::string out;
    out.reserve(base64.size() * 3 / 4);
    uint32_t bits = 0;
    int held = 0;
    for (char c : base64) {
      const int value = values[static_cast<unsigned char>(c)];
      if (value < 0) return std::nullopt;
      bits = bits << 6 | static_cast<uint32_t>(value);
      if ((held += 6) < 8) continue;
      held -= 8;
      out += static_cast<char>(bits >> held & 0xFF);
    }
    if (bits & ((1u << held) - 1)) return std::nullopt;  // bits behind the last byte
    return out;
  }

  static bool has_value(uint32_t unit) { return unit >> 8 & 1; }
  static uint32_t value(uint32_t unit) { return unit & 0x7FFFFFFF; }
  static uint32_t label(uint32_t unit) { return unit & 0x800000FF; }
  static uint32_t offset(uint32_t unit) { return (unit >> 10) << ((unit & 0x200) >> 6); }

  // The text of the first key at the start of the bytes that are looked up. A zero ends it.
  bool find(std::string_view looked_up, std::string_view& text) const {
    uint32_t at = offset(units_[0]);
    for (char c : looked_up) {
      const uint32_t byte = static_cast<unsigned char>(c);
      if (byte == 0) return false;
      at ^= byte;
      const uint32_t unit = units_[at];
      if (label(unit) != byte) return false;
      at ^= offset(unit);
      if (!has_value(unit)) continue;
      text = std::string_view(texts_).substr(value(units_[at]));
      text = text.substr(0, text.find('\0'));
      return true;
    }
    return false;
  }

  bool has_short_texts() const {
    for (size_t from = 0, to; from < texts_.size(); from = to + 1) {
      to = std::min(texts_.find('\0', from), texts_.size());
      if (to - from > most_content) return false;
    }
    return true;
  }

  // Whether all walks from the root stay in the trie, and all values are places where a character of the texts
  // begins.
  bool is_sound() const {
    if (units_.empty() || utf8_invalid_at(texts_) != std::string_view::npos) return false;
    const auto whole = [&](uint32_t at) { return (at | 255) < units_.size(); };
    const uint32_t root = offset(units_[0]);
    if (!whole(root)) return false;
    const auto is_place = [&](size_t place) {
      return place <= texts_.size() &&
             (place == texts_.size() || !utf8_continues(static_cast<unsigned char>(texts_[place])));
    };
    // Most maps have no broken unit, whether a walk meets it or not.
    bool all = true;
    for (uint32_t at = 0; at < units_.size() && all; ++at) {
      const uint32_t unit = units_[at], next = at ^ offset(unit);
      if (const uint32_t byte = label(unit); byte && byte < 256)
        all = whole(next) && (!has_value(unit) || is_place(value(units_[next])));
    }
    if (all) return true;
    std::vector<bool> seen(units_.size());
    std::vector<uint32_t> open{root};
    seen[root] = true;
    while (!open.empty()) {
      const uint32_t from = open.back();
      open.pop_back();
      for (uint32_t byte = 1; byte < 256; ++byte) {
        const uint32_t unit = units_[from ^ byte];
        if (label(unit) != byte) continue;
        const uint32_t next = from ^ byte ^ offset(unit);
        if (!whole(next)) return false;
        if (has_value(unit) && !is_place(value(units_[next]))) return false;
        if (seen[next]) continue;
        seen[next] = true;
        open.push_back(next);
      }
    }
    return true;
  }

  std::vector<uint32_t> units_;
  std::string texts_;
  // Characters that begin with no key; of these the ones that are in no cluster with others.
  BmpSet kept_, calm_;
};

}  // namespace fasttoken
