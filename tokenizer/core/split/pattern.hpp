// A pattern of a file: a fixed text, a regular expression of ours, or one that only the caller's matcher can do. That
// may be slow out of all proportion to the text: each call of the tokenizer's API has one ExternalUse, in its
// scratch, by which the matcher bounds all its work of that call.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "loading/json.hpp"
#include "regex/regex.hpp"

namespace fasttoken {

using Matches = std::vector<std::pair<uint32_t, uint32_t>>;
// Appends the matches of pattern number n in the text.
using ExternalMatcher = std::function<void(size_t n, std::string_view text, Matches& out, ExternalUse& use)>;

struct Externals {
  bool allowed = false;
  ExternalMatcher match;
  std::vector<std::string> patterns;
};

class Pattern {
 public:
  // {"String": "..."} or {"Regex": "..."}
  static Pattern read(const Json& json, Externals& externals) {
    if (auto text = json.get("String")) return fixed(std::string(text->string()));
    auto regex = json.get("Regex");
    if (!regex) json.fail("expected {\"String\": ...} or {\"Regex\": ...}");
    return expression(regex->string(), regex->path(), externals);
  }
  static Pattern fixed(std::string text) {
    Pattern p;
    p.text_ = std::move(text);
    return p;
  }
  static Pattern expression(std::string_view source, const std::string& path, Externals& externals) {
    Pattern p;
    try {
      p.regex_ = std::make_shared<Regex>(source, path);
    } catch (const Unsupported&) {
      if (!externals.allowed) throw;
      p.externals_ = &externals;
      p.external_ = externals.patterns.size();
      externals.patterns.emplace_back(source);
    }
    return p;
  }

  template <class F>
  void each(std::string_view text, RegexScratch& scratch, F&& found) const {
    if (regex_) return regex_->each(text, scratch, found);
    if (externals_) {
      Matches matches;
      externals_->match(external_, text, matches, scratch.external);
      uint32_t at = 0;
      for (auto [begin, end] : matches) {
        if (begin < at || end < begin || end > text.size())
          throw TextError("the matcher returned matches that are out of order", begin);
        found(begin, end);
        at = end;
      }
      return;
    }
    if (text_.empty()) {  // an empty pattern matches between all characters
      for (size_t at = 0; at <= text.size();) {
        found(static_cast<uint32_t>(at), static_cast<uint32_t>(at));
        if (at == text.size()) break;
        at += utf8_length(static_cast<unsigned char>(text[at]));
      }
      return;
    }
    for (size_t at = 0; (at = text.find(text_, at)) != std::string_view::npos; at += text_.size())
      found(static_cast<uint32_t>(at), static_cast<uint32_t>(at + text_.size()));
  }

  bool is_fixed() const { return !regex_ && !externals_; }
  const std::string* fixed_text() const { return is_fixed() ? &text_ : nullptr; }
  bool is_text(std::string_view text) const { return !regex_ && !externals_ && text_ == text; }
  const Regex* regex() const { return regex_.get(); }  // null for a fixed text and where it is the caller's matcher

  // Whether it may match the empty text, as far as is known.
  bool matches_empty() const { return regex_ ? regex_->matches_empty() : !externals_ && text_.empty(); }

 private:
  std::string text_;
  std::shared_ptr<Regex> regex_;
  Externals* externals_ = nullptr;
  size_t external_ = 0;
};

}  // namespace fasttoken
