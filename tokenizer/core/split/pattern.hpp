// A pattern of a file: a fixed text or a regular expression.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "loading/json.hpp"
#include "regex/regex.hpp"

namespace fasttoken {

class Pattern {
 public:
  // {"String": "..."} or {"Regex": "..."}
  static Pattern read(const Json& json) {
    if (auto text = json.get("String")) return fixed(std::string(text->string()));
    auto regex = json.get("Regex");
    if (!regex) json.fail("expected {\"String\": ...} or {\"Regex\": ...}");
    return expression(regex->string(), regex->path());
  }
  static Pattern fixed(std::string text) {
    Pattern p;
    p.text_ = std::move(text);
    return p;
  }
  static Pattern expression(std::string_view source, const std::string& path) {
    Pattern p;
    p.regex_ = std::make_shared<Regex>(source, path);
    return p;
  }

  template <class F>
  void each(std::string_view text, RegexScratch& scratch, F&& found) const {
    if (regex_) return regex_->each(text, scratch, found);
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

  bool is_fixed() const { return !regex_; }
  const std::string* fixed_text() const { return is_fixed() ? &text_ : nullptr; }
  bool is_text(std::string_view text) const { return is_fixed() && text_ == text; }
  const Regex* regex() const { return regex_.get(); }  // null for a fixed text

  // Whether it may match the empty text.
  bool matches_empty() const { return regex_ ? regex_->matches_empty() : text_.empty(); }

 private:
  std::string text_;
  std::shared_ptr<Regex> regex_;
};

}  // namespace fasttoken
