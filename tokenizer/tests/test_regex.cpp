// Patterns: matches, refusals, and time that stays linear where a backtracker's would explode.
#include <chrono>
#include <random>
#include <vector>

#include "check.hpp"
#include "regex/regex.hpp"

using namespace fasttoken;

namespace {

std::vector<std::string> found(const std::string& pattern, const std::string& text) {
  Regex r(pattern, "test");
  RegexScratch s;
  std::vector<std::string> out;
  r.each(text, s, [&](uint32_t b, uint32_t e) { out.push_back(text.substr(b, e - b)); });
  return out;
}
using Matches = std::vector<std::pair<uint32_t, uint32_t>>;
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

// The table finds the matches of the search: patterns of real files and made ones, on texts of characters that they
// distinguish.
void table_equals_search() {
  const char* const patterns[] = {
      "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
      "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
      "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'ll)?|"
      "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'ll)?|\\p{N}|"
      " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
      "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|"
      "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
      "a*?b|a+(?=c)|(?:ab|a)(?:bc)?",
      "a?+ab|a{2,3}?b|a{1,2}+c",
      "(?:aa|a)+?b|c+(?!d)",
      "a+b|a",
      "(?:a|ab){2,3}c"};
  const std::vector<std::string> shards = split(
      "a|b|c|d|A|The|'s|'LL|'|1|12| |  "
      "|\n|\r\n|\t|.|/|!?|\xC3\xA9|\xC3\x89|\xE4\xBD\xA0|\xCC\x81|\xC2\xA0|\xE3\x80\x80|"
      "\xF0\x9F\x98\x80|\xD9\xA3|\xC5\xBF|\x01",
      '|');
  std::mt19937 random(5);
  for (const char* pattern : patterns) {
    Regex r(pattern, "test");
    CHECK(r.table());
    RegexScratch s;
    for (int round = 0; round < 4000; ++round) {
      std::string text;
      for (size_t n = random() % 30; n > 0; --n) text += shards[random() % (round % 3 ? shards.size() : 6)];
      Matches one, two;
      r.each(text, s, [&](uint32_t b, uint32_t e) { one.push_back({b, e}); });
      r.search(text, s, [&](uint32_t b, uint32_t e) { two.push_back({b, e}); });
      CHECK(one == two);
    }
  }
  // A text that makes the table look ahead for nothing goes to the search, and the matches are the same.
  Regex r("a+b|ac", "test");
  RegexScratch s;
  Matches one, two;
  std::string text = std::string(500, 'a') + "cab" + std::string(500, 'a') + "ac";
  r.each(text, s, [&](uint32_t b, uint32_t e) { one.push_back({b, e}); });
  r.search(text, s, [&](uint32_t b, uint32_t e) { two.push_back({b, e}); });
  CHECK(one == two && one.size() == 3);
}

}  // namespace

int main() {
  matches();
  refusals();
  linear();
  remembered_equals_plain();
  table_equals_search();
  return finish("regex");
}
