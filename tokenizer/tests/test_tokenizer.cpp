// Whole tokenizers made in the test: merging, unknown characters, added tokens, offsets, streams
// and malformed files.
#include <random>

#include "check.hpp"
#include "vocab/stream.hpp"

using namespace fasttoken;

namespace {

std::string file(const std::string& model, const std::string& rest = "") {
  return R"({"version":"1.0",)" + rest + R"("model":)" + model + "}";
}

const char* const small_model = R"({"type":"BPE","unk_token":"?","fuse_unk":true,
  "vocab":{"a":0,"b":1,"c":2,"ab":3,"abc":4,"bc":5,"?":6,"aa":7,"aaaa":8," ":9},
  "merges":["a b","ab c","b c","a a","aa aa"]})";

Encoded encode(const Tokenizer& t, const std::string& text) {
  Scratch s;
  Encoded e;
  t.encode(text, true, s, e);
  to_characters(text, e.offsets);
  std::vector<int32_t> ids;
  t.encode_ids(text, true, s, ids);
  CHECK(ids == e.ids);
  return e;
}

void merging() {
  Tokenizer t(file(small_model));
  CHECK((encode(t, "abc").ids == std::vector<int32_t>{4}));
  CHECK((encode(t, "aaaaa").ids == std::vector<int32_t>{8, 0}));
  Encoded e = encode(t,
                     "a\xC3\xA9\xC3\xA9"
                     "b");
  CHECK((e.ids == std::vector<int32_t>{0, 6, 1}));
  CHECK(e.offsets[1].begin == 1 && e.offsets[1].end == 3);
}

void added_tokens() {
  Tokenizer t(file(small_model, R"("added_tokens":[
    {"id":10,"content":"<s>","single_word":false,"lstrip":true,"rstrip":true,"normalized":false,"special":true},
    {"id":11,"content":"<s>x","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":false},
    {"id":12,"content":"w","single_word":true,"lstrip":false,"rstrip":false,"normalized":false,"special":false}],)"));
  CHECK((encode(t, "a <s> b").ids == std::vector<int32_t>{0, 10, 1}));
  CHECK((encode(t, "a<s>x").ids == std::vector<int32_t>{0, 11}));
  CHECK((encode(t, "w aw").ids == std::vector<int32_t>{12, 9, 0, 6}));
  std::vector<int32_t> ids;
  Scratch s;
  t.encode_ids("<s>a", false, s, ids);
  CHECK((ids == std::vector<int32_t>{6, 0}));
  CHECK(t.decode(std::vector<uint32_t>{10, 0, 999}, true, s) == "a");
}

void streams() {
  std::string vocab;
  for (int b = 0; b < 256; ++b) {
    std::string name;
    utf8_append(name, byte_level_char(static_cast<unsigned char>(b)));
    vocab += b ? "," : "";
    write_json_string(vocab, name);
    vocab += ":" + std::to_string(b);
  }
  Tokenizer t(file(R"({"type":"BPE","vocab":{)" + vocab + R"(},"merges":[]})",
                   R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true},
                      "decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true},)"));
  std::string text = "h\xC3\xA9 \xE4\xBD\xA0\xF0\x9F\x98\x80!";
  Encoded e = encode(t, text);
  CHECK(e.ids.size() == text.size());
  Scratch s;
  CHECK(t.decode(e.ids, false, s) == text);
  DecodeStream stream(&t, {}, false);
  std::string all;
  for (int32_t id : e.ids)
    if (auto part = stream.step(std::vector<int32_t>{id}, s)) all += *part;
  CHECK(all == text);
  CHECK(!stream.step(std::vector<int32_t>{0xE4, 0xBD}, s));
  CHECK(stream.finish(s) == "\xEF\xBF\xBD");
  CHECK(stream.finish(s).empty());
  // Any bytes: the pieces and the rest at the end make the whole decoded text.
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    std::vector<uint32_t> ids(random() % 30);
    for (auto& id : ids) id = random() % 3 ? 0x80 + random() % 0x80 : random() % 258;
    DecodeStream one(&t, {}, false);
    std::string got;
    for (uint32_t id : ids)
      if (auto part = one.step(std::vector<uint32_t>{id}, s)) got += *part;
    CHECK(got + one.finish(s) == t.decode(ids, false, s));
  }
}

void malformed() {
  for (const char* model :
       {R"({"type":"BPE"})", R"({"type":"BPE","vocab":{"a":-1},"merges":[]})",
        R"({"type":"BPE","vocab":{"a":1099511627776},"merges":[]})",
        R"({"type":"BPE","vocab":{"a":0.5},"merges":[]})", R"({"type":"BPE","vocab":{"a":4000000000},"merges":[]})",
        R"({"type":"BPE","vocab":{"a":0},"merges":["a b"]})",
        R"({"type":"BPE","vocab":{"a":0,"b":1},"merges":["a b"]})",
        R"({"type":"BPE","vocab":{"a":0},"merges":["a"]})",
        R"({"type":"BPE","vocab":{"a":0,"aa":1},"merges":["a a",["a","a"]]})",
        R"({"type":"BPE","vocab":[],"merges":[]})", R"({"type":"BPE","vocab":{"a":0},"merges":{}})", R"([])",
        R"("x")"})
    CHECK(throws<FileError>([&] { Tokenizer t(file(model)); }));
  CHECK(throws<Unsupported>([] { Tokenizer t(file(R"({"type":"Unigram","vocab":[]})")); }));
  CHECK(throws<Unsupported>([] { Tokenizer t(file(R"({"type":"BPE","vocab":{"a":0,"b":0},"merges":[]})")); }));
  CHECK(throws<FileError>([] { Tokenizer t(R"({"version":"2.0","model":{}})"); }));
  CHECK(throws<FileError>([] { Tokenizer t(R"({"version":"1.0","surprise":1,"model":{}})"); }));
  CHECK(throws<FileError>([] { Tokenizer t("{}"); }));
  try {
    Tokenizer t(file(R"({"type":"BPE","vocab":{"a":0,"b":-3},"merges":[]})"));
  } catch (const FileError& e) {
    CHECK(e.path == "model.vocab[\"b\"]");
  }
  std::string whole = file(small_model);
  for (size_t n = 0; n < whole.size(); ++n) CHECK(throws<FileError>([&] { Tokenizer t(whole.substr(0, n)); }));
  Tokenizer empty(file(R"({"type":"BPE","vocab":{},"merges":[]})"));
  CHECK(encode(empty, "abc").ids.empty());
}

}  // namespace

int main() {
  merging();
  added_tokens();
  streams();
  malformed();
  return finish("tokenizer");
}
