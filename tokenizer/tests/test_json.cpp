// The JSON reader: accepted files, refused ones, and the place that it names.
#include "check.hpp"
#include "loading/json.hpp"

using namespace fasttoken;

namespace {

bool refused(const std::string& text) {
  return throws<FileError>([&] { JsonDocument d(text); });
}

void accepts() {
  std::string text = R"( {"a": [1, -2.5e3, "x\u00e9\ud83d\ude00\n"], "b": {"c": null, "d": true}, "e": []} )";
  JsonDocument d(text);
  Json root(d, 0, "");
  CHECK(root.size() == 3);
  CHECK(root.need("b").flag("d", false));
  CHECK(!root.need("b").get("c"));
  int n = 0;
  root.need("a").each([&](const Json& x) {
    if (n == 0) CHECK(x.integer() == 1);
    if (n == 1) CHECK(throws<FileError>([&] { (void)x.integer(); }));
    if (n == 2) CHECK(x.string() == "x\xC3\xA9\xF0\x9F\x98\x80\n");
    ++n;
  });
  CHECK(n == 3);
  CHECK(root.need("b").source() == R"({"c": null, "d": true})");
  CHECK(root.need("e").size() == 0);
}

void refuses() {
  for (const char* text : {"",
                           " ",
                           "{",
                           "[1,]",
                           "{\"a\":1,}",
                           "{\"a\" 1}",
                           "[1 2]",
                           "nul",
                           "NaN",
                           "01",
                           "1.",
                           "-",
                           "\"a",
                           "\"\\x\"",
                           "\"\\u12\"",
                           "\"\\ud800\"",
                           "\"\\udc00\"",
                           "\"\n\"",
                           "{} x",
                           "\xEF\xBB\xBF{}",
                           "\"\xFF\"",
                           "[1}",
                           "{1:2}",
                           "Infinity",
                           "'a'"})
    CHECK(refused(text));
  std::string deep(100000, '[');
  CHECK(refused(deep));
  CHECK(!refused(std::string(128, '[') + std::string(128, ']')));
  CHECK(refused(std::string(129, '[') + std::string(129, ']')));
  std::string whole = R"({"a": ["b", {"c": "\u0041"}], "d": -1.5e+3})";
  for (size_t n = 0; n < whole.size(); ++n) CHECK(refused(whole.substr(0, n)));
}

}  // namespace

int main() {
  accepts();
  refuses();
  return finish("json");
}
