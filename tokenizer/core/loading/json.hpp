// A JSON document as one flat tape of values, each followed by its items; `skip` of a container is the index past its
// last one. The file's bytes outlive the document: strings point into them unless they held escapes. The text is
// valid UTF-8, at most 128 levels deep, and numbers keep their text: the reader of one decides its type.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "errors.hpp"
#include "text/utf8.hpp"

namespace fasttoken {

enum class JsonKind : uint8_t { null, boolean, number, string, array, object };

struct JsonValue {
  JsonKind kind;
  bool truth;
  uint32_t count;      // of a container: how many values (pairs in an object)
  uint32_t skip;       // of a container: index past its end
  uint32_t begin;      // where the value starts in the file
  std::string_view s;  // of a string: its text; of a number: its digits
};

class JsonDocument {
 public:
  explicit JsonDocument(std::string_view file) : text_(file) {
    size_t bad = utf8_invalid_at(file);
    if (bad != std::string_view::npos) fail(bad, "not valid UTF-8");
    if (file.size() > UINT32_MAX - 16) fail(0, "larger than 4 GB");
    tape_.reserve(file.size() / 12 + 16);
    ends_.reserve(file.size() / 12 + 16);
    value(0);
    space();
    if (at_ != text_.size()) fail(at_, "something follows the document");
  }
  JsonDocument(const JsonDocument&) = delete;
  JsonDocument& operator=(const JsonDocument&) = delete;

  const JsonValue& operator[](uint32_t at) const { return tape_[at]; }
  uint32_t past(uint32_t at) const { return tape_[at].kind >= JsonKind::array ? tape_[at].skip : at + 1; }
  // The source text of a value.
  std::string_view source(uint32_t at) const {
    uint32_t begin = tape_[at].begin;
    return text_.substr(begin, ends_.at(at) - begin);
  }

 private:
  [[noreturn]] void fail(size_t at, const std::string& what) const {
    const std::string_view before = text_.substr(0, at);
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    const size_t column = before.size() - (before.rfind('\n') + 1) + 1;  // npos + 1 is 0
    throw FileError("line " + std::to_string(line) + " column " + std::to_string(column), what);
  }

  void space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
      ++at_;
  }

  char peek() {
    space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  void value(size_t depth) {
    const char c = peek();
    if (at_ >= text_.size()) fail(at_, "the file ends too early");
    if (c != '{' && c != '[') return scalar(c);
    if (depth >= 128) fail(at_, "nested deeper than 128 levels");
    const bool object = c == '{';
    const char close = object ? '}' : ']';
    const size_t place = tape_.size();
    push(object ? JsonKind::object : JsonKind::array, at_++);
    uint32_t count = 0;
    for (; count == 0 ? peek() != close : more(object, close); ++count) {
      if (object) key();
      value(depth + 1);
    }
    ++at_;
    tape_[place].count = count;
    tape_[place].skip = static_cast<uint32_t>(tape_.size());
    ends_[place] = static_cast<uint32_t>(at_);
  }

  // Behind a value of a container: whether another one follows.
  bool more(bool object, char close) {
    const char c = peek();
    if (c == close) return false;
    if (at_ >= text_.size()) fail(at_, "the file ends too early");
    if (c != ',') fail(at_, object ? "expected , or }" : "expected , or ]");
    ++at_;
    if (peek() == close)
      fail(at_, object ? "a comma before the end of an object" : "a comma before the end of an array");
    return true;
  }

  void push(JsonKind kind, size_t begin, std::string_view s = {}, bool truth = false) {
    tape_.push_back({kind, truth, 0, 0, static_cast<uint32_t>(begin), s});
    ends_.push_back(static_cast<uint32_t>(at_));
  }

  void key() {
    if (peek() != '"') fail(at_, "expected a key");
    string();
    if (peek() != ':') fail(at_, "expected :");
    ++at_;
  }

  void scalar(char c) {
    if (c == '"') return string();
    size_t begin = at_;
    if (c == '-' || (c >= '0' && c <= '9')) return number();
    for (std::string_view word : {"null", "true", "false"}) {
      if (text_.substr(at_, word.size()) == word) {
        at_ += word.size();
        push(word == "null" ? JsonKind::null : JsonKind::boolean, begin, {}, word == "true");
        return;
      }
    }
    fail(at_, "expected a value");
  }

  bool take(std::string_view any) {
    for (char c : any)
      if (at_ < text_.size() && text_[at_] == c) return ++at_;
    return false;
  }
  void digits() {
    const size_t from = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    if (at_ == from) fail(at_, "expected a digit");
  }
  void number() {
    size_t begin = at_;
    take("-");
    if (!take("0")) digits();
    if (take(".")) digits();
    if (take("eE")) {
      take("+-");
      digits();
    }
    push(JsonKind::number, begin, text_.substr(begin, at_ - begin));
  }

  uint32_t hex4() {
    if (at_ + 4 > text_.size()) fail(at_, "the file ends too early");
    uint32_t value = 0;
    for (int i = 0; i < 4; ++i) {
      const int digit = hex_digit(text_[at_++]);
      if (digit < 0) fail(at_ - 1, "not a hexadecimal digit");
      value = value << 4 | static_cast<uint32_t>(digit);
    }
    return value;
  }

  void string() {
    const size_t begin = at_++;
    std::string* made = nullptr;  // of one with escapes
    for (size_t from = at_;; from = at_) {
      while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
             static_cast<unsigned char>(text_[at_]) >= 0x20)
        ++at_;
      if (at_ >= text_.size()) fail(at_, "a string does not end");
      const std::string_view plain = text_.substr(from, at_ - from);
      const char c = text_[at_++];
      if (made) made->append(plain);
      if (c == '"') return push(JsonKind::string, begin, made ? std::string_view(*made) : plain);
      if (c != '\\') fail(at_ - 1, "a control character in a string");
      if (!made) made = &owned_.emplace_back(plain);
      escape(*made);
    }
  }

  void escape(std::string& out) {
    if (at_ >= text_.size()) fail(at_, "a string does not end");
    char c = text_[at_++];
    static constexpr std::string_view from = "\"\\/bfnrt", to = "\"\\/\b\f\n\r\t";
    if (size_t i = from.find(c); i != std::string_view::npos) {
      out += to[i];
      return;
    }
    if (c != 'u') fail(at_ - 1, "an unknown escape");
    size_t where = at_ - 2;
    uint32_t code = hex4();
    if (code >= 0xD800 && code < 0xDC00) {
      if (text_.substr(at_, 2) != "\\u") fail(where, "a lone surrogate");
      at_ += 2;
      uint32_t low = hex4();
      if (low < 0xDC00 || low > 0xDFFF) fail(where, "a lone surrogate");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code < 0xE000) {
      fail(where, "a lone surrogate");
    }
    utf8_append(out, code);
  }

  std::string_view text_;
  size_t at_ = 0;
  std::vector<JsonValue> tape_;
  std::vector<uint32_t> ends_;
  std::deque<std::string> owned_;  // deque: growth moves no string
};

// A place in a document together with its path, for readers that name the place of an error.
class Json {
 public:
  Json(const JsonDocument& document, uint32_t at, std::string path)
      : doc_(&document), at_(at), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  JsonKind kind() const { return value().kind; }
  bool is_null() const { return kind() == JsonKind::null; }
  uint32_t size() const { return value().count; }
  std::string_view source() const { return doc_->source(at_); }

  [[noreturn]] void fail(const std::string& what) const { throw FileError(path_, what); }

  std::string_view string() const {
    if (kind() != JsonKind::string) fail("expected a string");
    return value().s;
  }
  bool boolean() const {
    if (kind() != JsonKind::boolean) fail("expected true or false");
    return value().truth;
  }
  uint64_t integer() const {
    if (kind() != JsonKind::number) fail("expected a number");
    uint64_t out = 0;
    for (char c : value().s) {
      if (c < '0' || c > '9' || out > UINT64_MAX / 10 - 1)
        fail("expected a whole number that is not negative, not " + std::string(value().s));
      out = out * 10 + static_cast<uint64_t>(c - '0');
    }
    return out;
  }
  uint32_t character() const {
    std::string_view s = string();
    if (s.empty() || utf8_length(static_cast<unsigned char>(s[0])) != s.size()) fail("expected one character");
    return utf8_at(s.data());
  }

  std::optional<Json> find(std::string_view key) const {
    if (kind() != JsonKind::object) fail("expected an object");
    std::optional<Json> found;
    each_pair([&](std::string_view name, const Json& v) {
      if (name == key) found = v;
    });
    return found;
  }
  // Absent and null are the same here, as they are to the readers of this format.
  std::optional<Json> get(std::string_view key) const {
    auto found = find(key);
    if (found && found->is_null()) return std::nullopt;
    return found;
  }
  Json need(std::string_view key) const {
    auto found = find(key);
    if (!found) fail("no member \"" + std::string(key) + "\"");
    return *found;
  }
  bool flag(std::string_view key, bool otherwise) const {
    auto found = get(key);
    return found ? found->boolean() : otherwise;
  }

  template <class F>
  void each(F&& f) const {
    if (kind() != JsonKind::array) fail("expected an array");
    uint32_t at = at_ + 1, n = size();
    for (uint32_t i = 0; i < n; ++i, at = doc_->past(at)) f(Json(*doc_, at, path_ + "[" + std::to_string(i) + "]"));
  }
  template <class F>
  void each_pair(F&& f) const {
    if (kind() != JsonKind::object) fail("expected an object");
    uint32_t at = at_ + 1, n = size();
    for (uint32_t i = 0; i < n; ++i) {
      std::string_view name = (*doc_)[at].s;
      f(name, Json(*doc_, at + 1, path_.empty() ? std::string(name) : path_ + "." + std::string(name)));
      at = doc_->past(at + 1);
    }
  }

  // For long lists, without a path for each entry: index of the first entry, and steps from it.
  uint32_t first() const { return at_ + 1; }
  const JsonDocument& document() const { return *doc_; }

 private:
  const JsonValue& value() const { return (*doc_)[at_]; }
  const JsonDocument* doc_;
  uint32_t at_;
  std::string path_;
};

// The value of a JSON number as serde_json, by which HF reads files, has it. It is not always the double nearest to
// it: the digits that 64 bits hold are made a double, which is then multiplied or divided by a power of ten. Nothing
// where it is past all doubles.
inline std::optional<double> json_double(std::string_view s) {
  static const std::array<double, 309> powers = [] {
    std::array<double, 309> all;
    for (size_t i = 0; i < all.size(); ++i) all[i] = std::strtod(("1e" + std::to_string(i)).c_str(), nullptr);
    return all;
  }();
  const bool negative = s.starts_with('-');
  size_t at = negative ? 1 : 0;
  uint64_t digits = 0;
  int64_t exponent = 0;
  const auto is_digit = [&] { return at < s.size() && s[at] >= '0' && s[at] <= '9'; };
  const auto take = [&] {
    const uint64_t digit = static_cast<uint64_t>(s[at] - '0');
    if (digits > UINT64_MAX / 10 || (digits == UINT64_MAX / 10 && digit > UINT64_MAX % 10)) return false;
    digits = digits * 10 + digit;
    ++at;
    return true;
  };
  while (is_digit() && take()) {
  }
  for (; is_digit(); ++at) ++exponent;
  if (at < s.size() && s[at] == '.') {
    for (++at; is_digit() && take();) --exponent;
    while (is_digit()) ++at;  // left out
  }
  if (at < s.size() && (s[at] == 'e' || s[at] == 'E')) {
    ++at;
    const bool down = at < s.size() && s[at] == '-';
    if (at < s.size() && (s[at] == '-' || s[at] == '+')) ++at;
    int64_t power = 0;
    for (; is_digit(); ++at)
      if ((power = power * 10 + (s[at] - '0')) > INT32_MAX) {
        if (digits != 0 && !down) return std::nullopt;
        return negative ? -0.0 : 0.0;
      }
    exponent += down ? -power : power;
  }
  double value = static_cast<double>(digits);
  while (value != 0.0 && exponent < -308) {
    value /= 1e308;
    exponent += 308;
  }
  if (value != 0.0) {
    if (exponent > 308) return std::nullopt;
    if (exponent >= 0)
      value *= powers[static_cast<size_t>(exponent)];
    else
      value /= powers[static_cast<size_t>(-exponent)];
    if (value > 1.7976931348623157e308) return std::nullopt;
  }
  return negative ? -value : value;
}

}  // namespace fasttoken
