// Patterns: matches, refusals, and time that stays linear where a backtracker's would explode.
#include <chrono>
#include <vector>

#include "check.hpp"
#include "regex.hpp"

using namespace fasttoken;

namespace {

std::vector<std::string> found(const std::string& pattern, const std::string& text) {
  Regex r(pattern, "test");
  RegexScratch s;
  std::vector<std::string> out;
  r.each(text, s, [&](uint32_t b, uint32_t e) { out.push_back(text.substr(b, e - b)); });
  return out;
}
using List = std::vector<std::string>;

void matches() {
  CHECK((found("a+", "baac a") == List{"aa", "a"}));
  CHECK((found("\\p{N}{1,3}", "1234567") == List{"123", "456", "7"}));
  CHECK((found("\\p{N}{1,3}+", "1234567") == List{"1234567"}));
  CHECK((found("\\s+(?!\\S)|\\s+", "a   b ") == List{"  ", " ", " "}));
  CHECK((found("(?i:'s|'ll)", "x'S'Ll'\xC5\xBF") == List{"'S", "'Ll", "'\xC5\xBF"}));
  CHECK((found("a*?b", "aab") == List{"aab"}));
  CHECK((found("a+?", "aaa") == List{"a", "a", "a"}));
  CHECK((found("(?>a|ab)c", "abcac") == List{"ac"}));
  CHECK((found("a?+ab", "ab") == List{}));
  CHECK((found("(?<=a)b|(?<!a)c", "abcac") == List{"b", "c"}));
  CHECK((found("(ab|a)(bc)?", "abc") == List{"ab"}));
  CHECK((found("[^\\W\\d]+", "ab1_c") == List{"ab", "_c"}));
  CHECK((found("[\\w]", "\xC2\xB2") == List{}));
  CHECK((found("\\w", "\xC2\xB2").size() == 1));
  CHECK((found("[a-z&&[^b]]+", "abc") == List{"a", "c"}));
  CHECK((found("a{,2}b", "aaab") == List{"aab"}));
  CHECK((found("x{", "x{") == List{"x{"}));
  CHECK((found("^.", "ab\ncd") == List{"a", "c"}));
  CHECK((found("\\b", "ab").size() == 2));
  CHECK((found("\\d{1,3}(?=(?:\\d{3})*\\b)", "1234567") == List{"1", "234", "567"}));
}

void refusals() {
  for (const char* pattern : {"(a)\\1", "(?<=ab)c", "\\X", "[[:alpha:]]", "(?i:ss)", "(?i:\xC3\x9F)", "(", ")", "*a",
                              "[z-a]", "\\p{Nonsense}", "(?:a*)*", "a{1001}", "(?s).", "[a", "\\q", "(?~a)"})
    CHECK(throws<Unsupported>([&] { Regex r(pattern, "test"); }));
}

double seconds(const std::string& pattern, const std::string& text) {
  auto start = std::chrono::steady_clock::now();
  found(pattern, text);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void linear() {
  std::string a(50000, 'a'), digits(50000, '1');
  CHECK(seconds("(?:a+)+$", a + "b") < 20);
  CHECK(seconds("(?:a|a)+b", a) < 20);
  CHECK(seconds("(?:a|aa)+$", a + "b") < 20);
  CHECK(seconds("a+b", a) < 20);
  CHECK(seconds("a*a*a*b", a) < 20);
  CHECK(seconds("[a-z]+\\d", a) < 20);
  CHECK(seconds("\\d{1,3}(?=(?:\\d{3})*\\b)", digits) < 20);
  CHECK(seconds("(?:x+x+)+y", std::string(50000, 'x')) < 20);
}

// The same matches whether or not failed states are remembered: short texts never are, long ones are.
void remembered_equals_plain() {
  for (const char* pattern : {"(?:a+b?)+c|b", "(?:a|ab)(?:c|bcd)*?d", "a*?b|a+(?=c)", "(?:aa|a)+?b|c+(?!d)"}) {
    std::string unit = "aabaacabcdabaaab cccd aac ";
    List once = found(pattern, unit), many;
    std::string noisy;
    for (int i = 0; i < 50; ++i) noisy += unit;
    List all = found(pattern, noisy + std::string(3000, 'a'));
    for (size_t i = 0; i < once.size(); ++i) CHECK(i < all.size() && all[i] == once[i]);
  }
}

}  // namespace

int main() {
  matches();
  refusals();
  linear();
  remembered_equals_plain();
  return finish("regex");
}
