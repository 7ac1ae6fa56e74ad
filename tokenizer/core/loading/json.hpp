// A JSON document as one flat tape of values, each followed by its items. The file's bytes outlive the document: a
// value is a place in them, and so is its text unless it is a string with escapes. Strings are valid UTF-8,
// containers at most 128 levels deep, and numbers keep their text: the reader of one decides its type.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "errors.hpp"
#include "memory/scratch_vector.hpp"
#include "text/utf8.hpp"

namespace fasttoken {

enum class JsonKind : uint8_t { null, boolean, number, string, array, object };

class JsonDocument {
 public:
  explicit JsonDocument(std::string_view file) : text_(file), at_(file.data()), end_(at_ + file.size()) {
    if (file.size() > UINT32_MAX - 16) fail("larger than 4 GB");
    tape_.reserve(file.size() / 12 + 16);
    value(0);
    space();
    if (at_ != end_) fail("something follows the document");
  }
  JsonDocument(const JsonDocument&) = delete;
  JsonDocument& operator=(const JsonDocument&) = delete;

  JsonKind kind(uint32_t at) const {
    const char c = text_[tape_[at].begin];
    if (c == '"') return JsonKind::string;
    if (c == '{' || c == '[') return c == '{' ? JsonKind::object : JsonKind::array;
    return c == 'n' ? JsonKind::null : c == 't' || c == 'f' ? JsonKind::boolean : JsonKind::number;
  }
  // Of a container: how many values (pairs in an object).
  uint32_t count(uint32_t at) const { return tape_[at].count; }
  uint32_t past(uint32_t at) const { return tape_[at].skip ? tape_[at].skip : at + 1; }
  // The source text of a value.
  std::string_view source(uint32_t at) const {
    const Value& v = tape_[at];
    return {text_.data() + v.begin, v.end - v.begin};
  }
  // Of a string.
  std::string_view string(uint32_t at) const {
    const Value& v = tape_[at];
    if (v.count) return owned_[v.count - 1];
    return {text_.data() + v.begin + 1, v.end - v.begin - 2};
  }

 private:
  struct Value {
    uint32_t begin, end;  // in the file
    uint32_t count;       // of a string with escapes: its number among those, from 1
    uint32_t skip;        // of a container: index past its end
  };

  [[noreturn]] void fail(const std::string& what, size_t back = 0) const {
    const std::string_view before = text_.substr(0, static_cast<size_t>(at_ - text_.data()) - back);
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    const size_t column = before.size() - (before.rfind('\n') + 1) + 1;  // npos + 1 is 0
    throw FileError("line " + std::to_string(line) + " column " + std::to_string(column), what);
  }

  static constexpr uint64_t each_byte = 0x0101010101010101u, high_bits = each_byte << 7;
  // Eight bytes, the first one the lowest.
  static uint64_t eight(const char* p) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    return std::endian::native == std::endian::big ? __builtin_bswap64(word) : word;
  }

  void space() {
    const char* p = at_;
    for (; p < end_ && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t'); ++p)
      for (; end_ - p > 8; p += 8)  // lines are indented
        if (const uint64_t others = eight(p + 1) ^ each_byte * ' ') {
          p += std::countr_zero(others) / 8;
          break;
        }
    at_ = p;
  }

  char peek() {
    space();
    return at_ < end_ ? *at_ : '\0';
  }

  void value(size_t depth) {
    const char c = peek();
    if (c == '"') return string();
    if (at_ == end_) fail("the file ends too early");
    if (c != '{' && c != '[') return scalar(c);
    if (depth >= 128) fail("nested deeper than 128 levels");
    const bool object = c == '{';
    const char close = object ? '}' : ']';
    const size_t place = tape_.size();
    push(at_++);
    uint32_t count = 0;
    for (; count == 0 ? peek() != close : more(object, close); ++count) {
      if (object) key();
      value(depth + 1);
    }
    ++at_;
    tape_[place] = {tape_[place].begin, offset(at_), count, static_cast<uint32_t>(tape_.size())};
  }

  // Behind a value of a container: whether another one follows.
  bool more(bool object, char close) {
    const char c = peek();
    if (c == close) return false;
    if (at_ == end_) fail("the file ends too early");
    if (c != ',') fail(object ? "expected , or }" : "expected , or ]");
    ++at_;
    if (peek() == close) fail(object ? "a comma before the end of an object" : "a comma before the end of an array");
    return true;
  }

  uint32_t offset(const char* p) const { return static_cast<uint32_t>(p - text_.data()); }
  // A value that ends here.
  void push(const char* begin, size_t number = 0) {
    tape_.push_back({offset(begin), offset(at_), static_cast<uint32_t>(number), 0});
  }

  void key() {
    if (peek() != '"') fail("expected a key");
    string();
    if (peek() != ':') fail("expected :");
    ++at_;
  }

  void scalar(char c) {
    if (c == '-' || is_digit()) return number();
    for (std::string_view word : {"null", "true", "false"}) {
      if (static_cast<size_t>(end_ - at_) < word.size() || !std::equal(word.begin(), word.end(), at_)) continue;
      at_ += word.size();
      return push(at_ - word.size());
    }
    fail("expected a value");
  }

  bool is_digit() const { return at_ < end_ && *at_ >= '0' && *at_ <= '9'; }
  // One of two characters.
  bool take(char a, char b) { return at_ < end_ && (*at_ == a || *at_ == b) && ++at_; }
  bool take(char c) { return take(c, c); }
  void digits() {
    if (!is_digit()) fail("expected a digit");
    while (is_digit()) ++at_;
  }
  void number() {
    const char* const begin = at_;
    take('-');
    if (!take('0')) digits();
    if (take('.')) digits();
    if (take('e', 'E')) {
      take('+', '-');
      digits();
    }
    push(begin);
  }

  uint32_t hex4() {
    if (end_ - at_ < 4) fail("the file ends too early");
    uint32_t value = 0;
    for (int i = 0; i < 4; ++i) {
      const int digit = hex_digit(*at_++);
      if (digit < 0) fail("not a hexadecimal digit", 1);
      value = value << 4 | static_cast<uint32_t>(digit);
    }
    return value;
  }

  void string() {
    const char* const begin = at_++;
    std::string* made = nullptr;  // of one with escapes
    for (;;) {
      const std::string_view part = plain();
      if (at_ == end_) fail("a string does not end");
      const char c = *at_++;
      if (made) made->append(part);
      if (c == '"') return push(begin, made ? owned_.size() : 0);
      if (c != '\\') fail("a control character in a string", 1);
      if (!made) made = &owned_.emplace_back(part);
      escape(*made);
    }
  }

  // The part of a string up to its end, an escape, or a character that may not stand in one.
  std::string_view plain() {
    const char *const from = at_, *p = from;
    uint64_t bytes = 0;  // all of them, one on the other
    for (;; p += 8) {
      if (end_ - p < 8) {
        for (; p < end_ && *p != '"' && *p != '\\' && static_cast<unsigned char>(*p) >= 0x20; ++p)
          bytes |= static_cast<unsigned char>(*p);
        break;
      }
      // The lowest bit that is set is the highest of the first byte that ends it; what is above means nothing.
      const uint64_t word = eight(p), quotes = word ^ each_byte * '"', escapes = word ^ each_byte * '\\';
      const uint64_t ends = (((quotes - each_byte) & ~quotes) | ((escapes - each_byte) & ~escapes) |
                             ((word - each_byte * 0x20) & ~word)) &
                            high_bits;
      if (ends) {
        bytes |= word & (ends ^ (ends - 1)) >> 1;
        p += std::countr_zero(ends) / 8;
        break;
      }
      bytes |= word;
    }
    const std::string_view found(from, static_cast<size_t>(p - from));
    if (bytes & high_bits)
      if (const size_t bad = utf8_invalid_at(found); bad != found.npos) {
        at_ += bad;
        fail("not valid UTF-8");
      }
    at_ = p;
    return found;
  }

  void escape(std::string& out) {
    if (at_ == end_) fail("a string does not end");
    char c = *at_++;
    static constexpr std::string_view from = "\"\\/bfnrt", to = "\"\\/\b\f\n\r\t";
    if (size_t i = from.find(c); i != std::string_view::npos) {
      out += to[i];
      return;
    }
    if (c != 'u') fail("an unknown escape", 1);
    const char* const where = at_ - 2;
    const auto lone = [&] { fail("a lone surrogate", static_cast<size_t>(at_ - where)); };
    uint32_t code = hex4();
    if (code >= 0xD800 && code < 0xDC00) {
      if (end_ - at_ < 2 || at_[0] != '\\' || at_[1] != 'u') lone();
      at_ += 2;
      uint32_t low = hex4();
      if (low < 0xDC00 || low > 0xDFFF) lone();
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code < 0xE000) {
      lone();
    }
    utf8_append(out, code);
  }

  std::string_view text_;
  const char *at_, *end_;
  ScratchVector<Value> tape_;
  std::deque<std::string> owned_;  // of strings with escapes; deque: growth moves no string
};

// A place in a document together with its path, for readers that name the place of an error.
class Json {
 public:
  Json(const JsonDocument& document, uint32_t at, std::string path)
      : doc_(&document), at_(at), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  JsonKind kind() const { return doc_->kind(at_); }
  bool is_null() const { return kind() == JsonKind::null; }
  uint32_t size() const { return doc_->count(at_); }
  std::string_view source() const { return doc_->source(at_); }

  [[noreturn]] void fail(const std::string& what) const { throw FileError(path_, what); }

  std::string_view string() const {
    if (kind() != JsonKind::string) fail("expected a string");
    return doc_->string(at_);
  }
  bool boolean() const {
    if (kind() != JsonKind::boolean) fail("expected true or false");
    return source() == "true";
  }
  uint64_t integer() const {
    if (kind() != JsonKind::number) fail("expected a number");
    uint64_t out = 0;
    for (char c : source()) {
      if (c < '0' || c > '9' || out > UINT64_MAX / 10 - 1)
        fail("expected a whole number that is not negative, not " + std::string(source()));
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
    uint32_t found = 0;
    for (uint32_t i = 0, at = first(); i < size(); ++i, at = doc_->past(at + 1))
      if (doc_->string(at) == key) found = at;
    return found ? std::optional(member(found)) : std::nullopt;
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
    for (uint32_t i = 0, at = first(); i < size(); ++i, at = doc_->past(at + 1)) f(doc_->string(at), member(at));
  }

  // For long lists, without a path for each entry: index of the first entry, and steps from it.
  uint32_t first() const { return at_ + 1; }
  const JsonDocument& document() const { return *doc_; }

 private:
  // That of the key at this index.
  Json member(uint32_t at) const {
    const std::string name(doc_->string(at));
    return {*doc_, at + 1, path_.empty() ? name : path_ + "." + name};
  }
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
