// Doubles and strings as serde_json, which HF reads and writes files with, has them.
#pragma once

#include <array>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

namespace fasttoken {

// The value of a JSON number. It is not always the double nearest to it: the digits that 64 bits hold are made a
// double, which is then multiplied or divided by a power of ten. Nothing where it is past all doubles.
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

// The shortest digits that make the double, laid out as serde_json writes them.
inline void write_json_double(std::string& out, double value) {
  char buffer[40];
  const char* const end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  if (text.starts_with('-')) {
    out += '-';
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);
  int power = 0;  // of the first digit
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), end, power);
  if (value == 0.0) power = 0;
  const int n = static_cast<int>(digits.size()), whole = power + 1;  // digits before the point
  if (n <= whole && whole <= 16) {
    out.append(digits).append(static_cast<size_t>(whole - n), '0').append(".0");
  } else if (0 < whole && whole <= 16) {
    out.append(digits, 0, static_cast<size_t>(whole)).append(".").append(digits, static_cast<size_t>(whole));
  } else if (-5 < whole && whole <= 0) {
    out.append("0.").append(static_cast<size_t>(-whole), '0').append(digits);
  } else {
    out += digits[0];
    if (n > 1) out.append(".").append(digits, 1);
    out.append(power < 0 ? "e" : "e+").append(std::to_string(power));
  }
}

inline void write_json_string(std::string& out, std::string_view text) {
  static constexpr std::string_view escaped = "\"\\\n\r\t\b\f", names = "\"\\nrtbf", digits = "0123456789abcdef";
  out += '"';
  for (char c : text) {
    if (size_t i = escaped.find(c); i != escaped.npos)
      out.append(1, '\\').append(1, names[i]);
    else if (static_cast<unsigned char>(c) < 0x20)
      out.append("\\u00").append(1, digits[c >> 4]).append(1, digits[c & 15]);
    else
      out += c;
  }
  out += '"';
}

}  // namespace fasttoken
