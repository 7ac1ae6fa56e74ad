// Unigram beside a Viterbi over all positions, its trie, unknown characters, grapheme clusters and sentencepiece's
// map of characters.
#include <map>
#include <random>

#include "check.hpp"
#include "tokenizer.hpp"

using namespace fasttoken;

namespace {

using Pieces = std::vector<std::pair<std::string, double>>;

std::string file(const Pieces& pieces, const std::string& members = R"("unk_id":0)", const std::string& rest = "") {
  std::string vocab;
  for (auto& [text, score] : pieces) {
    vocab += vocab.empty() ? "[" : ",[";
    write_json_string(vocab, text);
    vocab += ",";
    write_json_double(vocab, score);
    vocab += "]";
  }
  return R"({"version":"1.0",)" + rest + R"("model":{"type":"Unigram",)" + members + R"(,"vocab":[)" + vocab + "]}}";
}

Encoded encode(const Tokenizer& t, const std::string& text) {
  Scratch s;
  Encoded e;
  t.encode(text, true, s, e);
  for (int i = 0; i < 3; ++i) {  // at last from a cache
    std::vector<int32_t> ids;
    t.encode_ids(text, true, s, ids);
    CHECK(ids == e.ids);
  }
  return e;
}

// As HF says it: all tokens that begin at each character, nothing settled before the end.
std::vector<int32_t> best(const Pieces& pieces, const std::string& text) {
  struct Node {
    double score = 0;
    size_t from = SIZE_MAX, id = 0;
  };
  std::map<std::string, size_t> ids;
  double least = 1e300;
  for (size_t i = 0; i < pieces.size(); ++i) {
    ids[pieces[i].first] = i;
    least = std::min(least, pieces[i].second);
  }
  std::vector<Node> nodes(text.size() + 1);
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(static_cast<unsigned char>(text[at]));
    bool single = false;
    const auto offer = [&](size_t end, double score, size_t id) {
      const double sum = score + nodes[at].score;
      if (nodes[end].from == SIZE_MAX || sum > nodes[end].score) nodes[end] = {sum, at, id};
    };
    for (size_t end = at + 1; end <= std::min(text.size(), at + 40); ++end)
      if (auto found = ids.find(text.substr(at, end - at)); found != ids.end()) {
        offer(end, pieces[found->second].second, found->second);
        single |= end - at == length;
      }
    if (!single) offer(at + length, least - 10, 0);
    at += length;
  }
  std::vector<int32_t> out;
  bool unknown = false;
  size_t unknown_end = 0;
  const auto put_unknown = [&](size_t begin) {
    if (!unknown) return;
    auto found = ids.find(text.substr(begin, unknown_end - begin));
    out.push_back(found == ids.end() ? 0 : static_cast<int32_t>(found->second));
    unknown = false;
  };
  for (size_t end = text.size(); end > 0; end = nodes[end].from) {
    if (nodes[end].id == 0) {
      if (!unknown) unknown_end = end;
      unknown = true;
      continue;
    }
    put_unknown(end);
    out.push_back(static_cast<int32_t>(nodes[end].id));
  }
  put_unknown(0);
  std::reverse(out.begin(), out.end());
  return out;
}

void beside_all_positions() {
  std::mt19937 random(11);
  const std::vector<std::string> letters{"a", "b", "c", "\xC3\xA9", "\xE4\xBD\xA0", "d"};
  const auto word = [&](size_t n) {
    std::string out;
    for (size_t i = 0; i < n; ++i) out += letters[random() % letters.size()];
    return out;
  };
  for (int round = 0; round < rounds(60); ++round) {
    std::map<std::string, double> made;
    // Few scores, so that sums are equal; above 0 too, and letters that are unknown.
    for (int i = 0; i < 60; ++i) made[word(1 + random() % 5)] = -static_cast<double>(random() % 6) + (round % 3);
    for (size_t i = 0; i < letters.size(); ++i)
      if (random() % 4) made[letters[i]] = -5.0 - static_cast<double>(random() % 3);
    Pieces pieces{{"<unk>", 0}};
    pieces.insert(pieces.end(), made.begin(), made.end());
    Tokenizer t(file(pieces));
    for (int i = 0; i < 40; ++i) {
      const std::string text = word(1 + random() % (i < 30 ? 20 : 3000));
      CHECK(encode(t, text).ids == best(pieces, text));
    }
  }
}

// Tokens that overlap everywhere: no place is in all ways, and the whole piece is one.
void ways_that_never_meet() {
  Pieces pieces{{"<unk>", 0}, {"a", -9}, {"aaa", -3}, {"aaaaa", -5}, {"aaaaaaa", -7}};
  Tokenizer t(file(pieces));
  for (size_t n : {1, 2, 511, 512, 513, 1025, 5000}) {
    const std::string text(n, 'a');
    CHECK(encode(t, text).ids == best(pieces, text));
  }
}

void trie() {
  // More children of one node, and more nodes, than a block has; a token that begins as all others; zero bytes.
  Pieces pieces{{"<unk>", 0}, {std::string(1, '\0'), -2}, {std::string("a\0b", 3), -2}};
  for (int c = 0x100; c < 0x2000; c += 3) {
    std::string one;
    utf8_append(one, static_cast<uint32_t>(c));
    pieces.push_back({one, -3});
    pieces.push_back({"x" + one + "y", -3});
  }
  pieces.push_back({std::string(512, 'q'), -1});
  Tokenizer t(file(pieces));
  for (size_t i = 1; i < pieces.size(); ++i)
    CHECK((encode(t, pieces[i].first).ids == std::vector<int32_t>{static_cast<int32_t>(i)}));
  CHECK((encode(t, "zz").ids == std::vector<int32_t>{0}));
  CHECK((encode(t, std::string(511, 'q')).ids == std::vector<int32_t>{0}));
  CHECK(t.table_bytes() < 4 << 20);
}

void unknown_characters() {
  Pieces pieces{{"<unk>", 0}, {"a", -1}, {"<0xC3>", -2}, {"<0xA9>", -2}};
  const std::string text =
      "xa\xC3\xA9\xC3\xA9"
      "a";
  Encoded e = encode(Tokenizer(file(pieces)), text);
  CHECK((e.ids == std::vector<int32_t>{0, 1, 0, 1}));
  CHECK(e.offsets[2].begin == 2 && e.offsets[2].end == 6);
  CHECK(e.added.size() == 2 && e.added[1].index == 2 && e.added[1].text == "\xC3\xA9\xC3\xA9");
  e = encode(Tokenizer(file(pieces, R"("unk_id":0,"byte_fallback":true)")), text);
  CHECK((e.ids == std::vector<int32_t>{0, 1, 2, 3, 2, 3, 1}));  // no byte of x is there
  CHECK(e.offsets[2].begin == 2 && e.offsets[5].end == 6 && e.added.size() == 1);
  // Scores above zero: two unknown characters are more than the token that they are, and are it all the same.
  pieces = {{"<unk>", 50}, {"a", 30}, {"xy", 30}};
  e = encode(Tokenizer(file(pieces)), "axya");
  CHECK((e.ids == std::vector<int32_t>{1, 2, 1}) && e.added.empty());
}

void files_left_to_others() {
  const auto left = [](const std::string& text) { return throws<Unsupported>([&] { Tokenizer t(text); }); };
  const Pieces one{{"<unk>", 0}, {"a", -1}};
  CHECK(!left(file(one)));
  CHECK(left(file(one, R"("unk_id":2)")));
  CHECK(left(file(one, R"("unk_id":null)")));
  CHECK(left(file(one, R"("unk_id":0,"alpha":0.1)")));
  CHECK(left(file({{"<unk>", 0}, {"a", -1}, {"a", -1}})));
  CHECK(left(file({{"<unk>", 0}, {std::string(513, 'a'), -1}})));
  CHECK(left(R"({"version":"1.0","model":{"type":"Unigram","unk_id":0,"vocab":[["a"]]}})"));
  CHECK(left(R"({"version":"1.0","model":{"type":"Unigram","unk_id":0,"vocab":[["a",1e999]]}})"));
}

void clusters() {
  const auto ends = [](const std::string& text) {
    std::vector<size_t> out;
    for (const char *p = text.data(), *end = p + text.size(); p < end;) {
      p = graphemes().next(p, end);
      out.push_back(static_cast<size_t>(p - text.data()));
    }
    return out;
  };
  CHECK((ends("ab\r\n\r\r") == std::vector<size_t>{1, 2, 4, 5, 6}));
  CHECK((ends("e\xCC\x81\xCC\x81"
              "f") == std::vector<size_t>{5, 6}));
  CHECK((ends("\n\xCC\x81") == std::vector<size_t>{1, 3}));  // a control stands apart
  CHECK((ends("\xD8\x80"
              "a") == std::vector<size_t>{3}));                                                     // Prepend
  CHECK((ends("\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8\xE1\x84\x80") == std::vector<size_t>{9, 12}));  // jamo
  CHECK((ends("\xEA\xB0\x80\xE1\x86\xA8\xEA\xB0\x81\xE1\x85\xA1") == std::vector<size_t>{6, 9, 12}));
  CHECK((ends("\xC2\xA9\xE2\x80\x8D\xC2\xA9\xC2\xA9") == std::vector<size_t>{7, 9}));               // pictures
  CHECK((ends("\xE0\xA4\x95\xE0\xA5\x8D\xE0\xA4\x95\xE0\xA4\x95") == std::vector<size_t>{9, 12}));  // conjuncts
}

// A map of the keys, as sentencepiece lays it out: each node has a block of its own.
std::string map_of(const std::map<std::string, std::string>& entries) {
  std::string texts;
  std::map<std::string, uint32_t> nodes{{"", 1}};  // a key's beginning: its block
  for (auto& [key, text] : entries)
    for (size_t n = 1; n <= key.size(); ++n)
      nodes.try_emplace(key.substr(0, n), static_cast<uint32_t>(nodes.size() + 1));
  std::vector<uint32_t> units((nodes.size() + 1) * 256);
  units[0] = 256 << 10;
  for (auto& [start, block] : nodes) {
    if (start.empty()) continue;
    const unsigned char last = static_cast<unsigned char>(start.back());
    const uint32_t at = nodes[start.substr(0, start.size() - 1)] * 256 ^ last, to = block * 256;
    units[at] = (at ^ to) << 10 | last;
    auto entry = entries.find(start);
    if (entry == entries.end()) continue;
    units[at] |= 256;
    units[to] = 1u << 31 | static_cast<uint32_t>(texts.size());
    texts += entry->second + '\0';
  }
  std::string raw;
  const auto put = [&](uint32_t value) {
    for (int i = 0; i < 4; ++i) raw += static_cast<char>(value >> 8 * i & 255);
  };
  put(static_cast<uint32_t>(units.size() * 4));
  for (uint32_t unit : units) put(unit);
  raw += texts;
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < raw.size(); i += 3) {
    uint32_t three = 0;
    for (size_t k = 0; k < 3; ++k)
      three = three << 8 | (i + k < raw.size() ? static_cast<unsigned char>(raw[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) out += i + k <= raw.size() ? digits[three >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

void maps() {
  const std::string map = map_of({{"\n", " "},
                                  {"\r", " "},
                                  {"\xEF\xAC\x81", "fi"},
                                  {"e\xCC\x81", "\xC3\xA9"},
                                  {"\x01", ""},
                                  {"a", "A"},
                                  {"\xE2\x80\xA6", "..."}});
  const Pieces letters{{"<unk>", 0}, {"b", -1}};
  const Tokenizer t(file(letters, R"("unk_id":0)",
                         R"("normalizer":{"type":"Precompiled","precompiled_charsmap":")" + map + R"("},)"));
  const auto normal = [&](const std::string& text) {
    Scratch s;
    return t.normalize(text, s);
  };
  CHECK(normal("bbb") == "bbb");
  CHECK(normal("b\r\nb\rb\nb") == "b b b b");
  CHECK(normal("e\xCC\x81"
               "b e\xCC\x81\xCC\x81") ==
        "\xC3\xA9"
        "b \xC3\xA9");
  CHECK(normal("a\xCC\x81"
               "ba") == "AbA");  // all of a cluster goes
  CHECK(normal("\xEF\xAC\x81\xCC\x81\xCC\x81 b\xE2\x80\xA6\x01") == "fi\xCC\x81\xCC\x81 b...");
  // Both characters of the longer text align to the one that it replaces; removed characters belong to those before
  // them.
  Encoded e = encode(t,
                     "\xEF\xAC\x81"
                     "b\x01xb");
  CHECK((e.ids == std::vector<int32_t>{0, 1, 0, 1}));
  CHECK(e.offsets[0].begin == 0 && e.offsets[0].end == 3 && e.offsets[1].begin == 3 && e.offsets[1].end == 4);
  CHECK(e.offsets[2].begin == 5 && e.offsets[3].begin == 6);

  bool broken = false;
  CHECK(Charsmap::read(map, broken).has_value() && !broken);
  CHECK(!Charsmap::read("", broken));
  CHECK(!Charsmap::read("AAAA", broken));
  CHECK(!Charsmap::read(map.substr(4), broken));
  CHECK(!Charsmap::read(map.substr(0, map.size() - 1) + "*", broken));
  CHECK(!Charsmap::read("AAAAAA==", broken) && broken);
  std::mt19937 random(3);
  for (int i = 0; i < rounds(3000); ++i) {  // none that is taken leaves its arrays, which the sanitizers would say
    std::string changed = map;
    for (int k = 0; k < 4; ++k)
      changed[random() % changed.size()] =
          "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[random() % 64];
    auto read = Charsmap::read(changed, broken);
    if (!read) continue;
    Growth growth(64);
    Text text;
    text.start("a\r\ne\xCC\x81 \xEF\xAC\x81\xE2\x80\xA6 b\x01\xC2\xA9", 0, i % 2, growth);
    read->apply(text);
    CHECK(utf8_invalid_at(text.view()) == std::string_view::npos);
  }
}

void layout_of_the_model() {
  const Pieces pieces{{"<unk>", 0}, {"\xE2\x96\x81", -2.5}, {"a\"", -0.1}};
  const Tokenizer t(file(pieces));
  CHECK(t.model_json() == R"({"type":"Unigram","unk_id":0,"vocab":[["<unk>",0.0],[")"
                          "\xE2\x96\x81"
                          R"(",-2.5],["a\"",-0.1]],"byte_fallback":false})");
}

}  // namespace

int main() {
  beside_all_positions();
  ways_that_never_meet();
  trie();
  unknown_characters();
  files_left_to_others();
  clusters();
  maps();
  layout_of_the_model();
  return finish("unigram");
}
