// From token strings back to text: the decoder of a file, flattened to steps. Each maps the whole list, as HF's
// decode_chain does, and the result is joined. A decoder that is only ByteLevel works on bytes alone
// (Tokenizer::decode).
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "split/pattern.hpp"
#include "text/utf8.hpp"

namespace fasttoken {

class Decoder {
 public:
  using Tokens = std::vector<std::string>;

  void read(const Json& json);

  bool present() const { return present_; }
  bool only_byte_level() const { return steps_.size() == 1 && steps_[0].kind == Kind::byte_level; }

  void apply(Tokens& tokens, RegexScratch& scratch) const {
    size_t size = size_of(tokens);
    Growth growth(size);
    for (const Step& step : steps_) {
      apply(step, tokens, scratch, growth);
      const size_t now = size_of(tokens);
      if (now > size && step.kind != Kind::replace) growth.take(now - size);  // Replace takes while it inserts
      size = now;
    }
  }

  // Replace any number of times, then ByteFallback, Fuse and a Strip of at most one leading character, each or none:
  // the text of a token does not depend on its neighbours, except for bytes of one character and the first token.
  struct Apart {
    bool fallback = false;
    std::optional<uint32_t> leading;  // taken from the beginning of the whole text
    bool first = false;               // whether the first token has a text of its own: a lone Metaspace or WordPiece
  };
  std::optional<Apart> apart() const {
    Apart found;
    if (steps_.size() == 1 && (steps_[0].kind == Kind::metaspace || steps_[0].kind == Kind::word_piece)) {
      found.first = true;
      return found;
    }
    int last = 0;
    for (const Step& step : steps_) {
      int now = step.kind == Kind::replace         ? 1
                : step.kind == Kind::byte_fallback ? 2
                : step.kind == Kind::fuse          ? 3
                : step.kind == Kind::strip         ? 4
                                                   : 0;
      if (now < last || now == 0 || (now == last && now > 1)) return std::nullopt;
      if (now == 1 && !step.pattern.is_fixed()) return std::nullopt;
      if (now == 4 && (last != 3 || step.start > 1 || step.stop != 0)) return std::nullopt;
      if (now == 2) found.fallback = true;
      if (now == 4 && step.start == 1) found.leading = step.character;
      last = now;
    }
    return last == 0 ? std::nullopt : std::optional(found);
  }

  // Of one that is apart(), where the first token has a text of its own: that text.
  std::string first(std::string_view token, RegexScratch& scratch) const {
    Tokens one{std::string(token)};
    Growth none(0);
    apply(steps_[0], one, scratch, none);
    return std::move(one[0]);
  }

  // The text of a token in the middle of a text, in bytes. raw: whether that is one byte of a character.
  std::string alone(std::string_view token, RegexScratch& scratch, bool* raw = nullptr) const {
    std::string now(token);
    Growth growth(token.size());
    for (const Step& step : steps_) {
      if (step.kind == Kind::byte_level) {
        std::string room;
        if (auto bytes = byte_level_decode(now, room)) now = *bytes;
      } else if (step.kind == Kind::byte_fallback) {
        const int b = fallback_byte(now);
        if (raw) *raw = b >= 0;
        if (b >= 0) now = std::string(1, static_cast<char>(b));
      } else if (step.kind == Kind::replace) {
        replace(step, now, scratch, growth);
      } else {
        change(step, now, false, false);
      }
    }
    return now;
  }

 private:
  enum class Kind : uint8_t { byte_level, byte_fallback, fuse, strip, replace, metaspace, word_piece, bpe, ctc };
  struct Step {
    Kind kind{};
    bool cleanup = false, keep_first = false;
    uint32_t character = 0;
    size_t start = 0, stop = 0;
    Pattern pattern;
    std::string content, delimiter;
  };

  static size_t limit(const Json& json) {
    uint64_t n = json.integer();
    return n > max_text ? max_text : static_cast<size_t>(n);
  }

  void read_metaspace(const Json& json, Step& step);

  // growth: the bytes that Replace may add.
  void apply(const Step& step, Tokens& tokens, RegexScratch& scratch, Growth& growth) const;

  static size_t size_of(const Tokens& tokens) {
    size_t n = 0;
    for (const std::string& t : tokens) n += t.size();
    return n;
  }

  // A token by its place, if the step is one of those that look at nothing else.
  static void change(const Step& step, std::string& t, bool first, bool last) {
    if (step.kind == Kind::metaspace) {
      t = replace_all(t, step.content, first && !step.keep_first ? "" : " ");
    } else if (step.kind == Kind::bpe) {
      t = replace_all(t, step.content, last ? "" : " ");
    } else if (step.kind == Kind::word_piece) {
      if (!first && t.starts_with(step.content))
        t.erase(0, step.content.size());
      else if (!first)
        t.insert(0, " ");
      if (step.cleanup) clean(t);
    }
  }

  // The byte of "<0xHH>", or -1; read as Rust reads a hexadecimal number, a plus sign included.
  static int fallback_byte(std::string_view t) {
    if (t.size() != 6 || !t.starts_with("<0x") || t[5] != '>') return -1;
    const int high = t[3] == '+' ? 0 : hex_digit(t[3]), low = hex_digit(t[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
  }

  static void byte_fallback(Tokens& tokens) {
    Tokens out;
    std::string bytes;
    auto flush = [&] {
      if (bytes.empty()) return;
      if (utf8_invalid_at(bytes) == std::string_view::npos)
        out.push_back(bytes);
      else
        for (size_t i = 0; i < bytes.size(); ++i) out.push_back("\xEF\xBF\xBD");
      bytes.clear();
    };
    for (std::string& t : tokens) {
      int b = fallback_byte(t);
      if (b >= 0) {
        bytes += static_cast<char>(b);
        continue;
      }
      flush();
      out.push_back(std::move(t));
    }
    flush();
    tokens = std::move(out);
  }

  static void strip(const Step& step, std::string& t) {
    const char *begin = t.data(), *end = begin + t.size(), *p = begin;
    for (size_t i = 0; i < step.start && p < end && utf8_at(p) == step.character; ++i) utf8_next(p);
    const char* q = end;
    for (size_t i = 0; i < step.stop && q > p && utf8_at(utf8_back(q)) == step.character; ++i) q = utf8_back(q);
    t = std::string(p, q);
  }

  // HF looks for no match in an empty text, not even for a pattern that matches one.
  static void replace(const Step& step, std::string& text, RegexScratch& scratch, Growth& growth) {
    if (text.empty()) return;
    std::string out;
    size_t at = 0;
    bool changed = false;
    step.pattern.each(text, scratch, [&](uint32_t begin, uint32_t end) {
      if (step.content.size() > end - begin) growth.take(step.content.size() - (end - begin));
      out.append(text, at, begin - at);
      out += step.content;
      at = end;
      changed = true;
    });
    if (changed) text = std::move(out.append(text, at));
  }

  static std::string replace_all(const std::string& text, std::string_view old, std::string_view with) {
    std::string out;
    size_t at = 0;
    if (old.empty()) {  // as Rust has it: between all characters
      for (size_t i = 0; i < text.size(); i += utf8_length(static_cast<unsigned char>(text[i]))) {
        out += with;
        out.append(text, i, utf8_length(static_cast<unsigned char>(text[i])));
      }
      return out.append(with);
    }
    for (size_t found; (found = text.find(old, at)) != std::string::npos; at = found + old.size()) {
      out.append(text, at, found - at);
      out += with;
    }
    return out.append(text, at);
  }

  static void clean(std::string& t) {
    static constexpr std::pair<std::string_view, std::string_view> rules[] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    // Each begins with a space, which most tokens have at their beginning alone.
    bool any = false;
    for (size_t at = 0; !any && (at = t.find(' ', at)) != std::string::npos;)
      any = ++at < t.size() && std::ranges::any_of(rules, [&](auto& rule) { return rule.first[1] == t[at]; });
    if (!any) return;
    for (auto& [old, with] : rules)
      if (t.find(old) != std::string::npos) t = replace_all(t, old, with);
  }

  static void ctc(const Step& step, Tokens& tokens) {
    Tokens out;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0 && tokens[i] == tokens[i - 1]) continue;
      std::string t = replace_all(tokens[i], step.content, "");
      if (step.cleanup) {
        clean(t);
        t = replace_all(t, step.delimiter, " ");
      }
      if (!t.empty()) out.push_back(std::move(t));
    }
    tokens = std::move(out);
  }

  std::vector<Step> steps_;
  bool present_ = false;
};

}  // namespace fasttoken
