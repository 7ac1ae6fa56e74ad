// The JSON reader: accepted files, refused ones, and the place that it names; numbers as serde_json has them.
#include <cmath>

#include "check.hpp"
#include "loading/json.hpp"
#include "loading/json_text.hpp"

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
  for (const std::string& text : split("; ;{;[1,];{\"a\":1,};{\"a\" 1};[1 "
                                       "2];nul;NaN;01;1.;-;\"a;\"\\x\";\"\\u12\";\"\\ud800\";\"\\udc00\";\"\n\";{} x;"
                                       "\xEF\xBB\xBF{};\"\xFF\";[1};{1:2};Infinity;'a'",
                                       ';'))
    CHECK(refused(text));
  std::string deep(100000, '[');
  CHECK(refused(deep));
  CHECK(!refused(std::string(128, '[') + std::string(128, ']')));
  CHECK(refused(std::string(129, '[') + std::string(129, ']')));
  std::string whole = R"({"a": ["b", {"c": "\u0041"}], "d": -1.5e+3})";
  for (size_t n = 0; n < whole.size(); ++n) CHECK(refused(whole.substr(0, n)));
}

void numbers() {
  CHECK(json_double("0") == 0.0 && json_double("-0") == 0.0 && std::signbit(*json_double("-0")));
  CHECK(json_double("-2.5") == -2.5 && json_double("1e2") == 100.0 && json_double("1.5E-3") == 1.5e-3);
  CHECK(json_double("18446744073709551616") == 18446744073709551616.0);
  CHECK(json_double("123456789012345678901234567890") == 1234567890123456789e11);
  CHECK(json_double("1e-400") == 0.0 && json_double("1e-320").value() > 0 && !json_double("1e309"));
  CHECK(!json_double("1e99999999999") && json_double("1e-99999999999") == 0.0);
  const auto written = [](double value) {
    std::string out;
    write_json_double(out, value);
    return out;
  };
  const double values[] = {0, -0.0, -2, 1234e7, 12.34, 0.00001234, 1e-7, 1.5e300, 1e15, 1e16};
  std::string all;
  for (double value : values) all += written(value) + " ";
  CHECK(all == "0.0 -0.0 -2.0 12340000000.0 12.34 0.00001234 1e-7 1.5e+300 1000000000000000.0 1e+16 ");
}

}  // namespace

int main() {
  accepts();
  refuses();
  numbers();
  return finish("json");
}
