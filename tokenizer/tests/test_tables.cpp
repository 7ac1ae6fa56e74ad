// Tables written and read back: the same tokenizer, and no file that was changed anywhere is taken.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

#include "check.hpp"
#include "vocab/stream.hpp"

using namespace fasttoken;

namespace {

constexpr Digest::Key key = {1, 2, 3, 4, 5, 6, 7, 8};
constexpr Digest::Value source = {9, 10};

const char* const files[] = {
    R"({"version":"1.0","added_tokens":[{"id":6,"content":"<x>","single_word":false,"lstrip":false,"rstrip":true,
        "normalized":false,"special":true}],"normalizer":{"type":"NFC"},"model":{"type":"BPE","unk_token":"?",
        "vocab":{"a":0,"b":1,"ab":2,"?":3,"\u00e9":4,"abab":5},"merges":["a b","ab ab"]}})",
    R"({"version":"1.0","pre_tokenizer":{"type":"BertPreTokenizer"},"model":{"type":"WordPiece","unk_token":"?",
        "continuing_subword_prefix":"##","max_input_chars_per_word":100,"vocab":{"?":0,"a":1,"##b":2,"ab":3,"##a":4}}})"};

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content) {
    char path[] = "/tmp/tables-XXXXXX";
    file_ = mkstemp(path);
    unlink(path);
    CHECK(file_ >= 0 && write(file_, content.data(), content.size()) == static_cast<ssize_t>(content.size()));
    lseek(file_, 0, SEEK_SET);
  }
  ~TemporaryFile() { close(file_); }
  int number() const { return file_; }

 private:
  int file_;
};

std::string written(const Tokenizer& t) {
  TableWriter out(key, source);
  t.write_tables(out);
  return out.finish();
}

bool taken(const std::string& content, const Digest::Key& by = key, const Digest::Value& of = source) {
  TemporaryFile file(content);
  try {
    TableReader in(file.number(), content.size(), by, of);
    Tokenizer t(in);
    return true;
  } catch (const TablesError&) {
    return false;
  }
}

void same(const Tokenizer& a, const Tokenizer& b) {
  for (const char* text : {"", "a", "abab ab\xC3\xA9", "<x> ab <x>", "e\xCC\x81 q ab!", "abababababababababab"}) {
    Scratch s;
    Encoded x, y;
    a.encode(text, true, s, x);
    b.encode(text, true, s, y);
    std::vector<int32_t> ids;
    b.encode_ids(text, true, s, ids);
    CHECK(x.ids == y.ids && ids == x.ids && x.words == y.words);
    CHECK(a.decode(ids, false, s) == b.decode(ids, false, s));
    CHECK(a.decode(ids, true, s) == b.decode(ids, true, s));
  }
  CHECK(a.model_json() == b.model_json());
}

void round_trip_and_damage(const char* json) {
  Tokenizer made{std::string_view(json)};
  std::string content = written(made);
  {
    TemporaryFile file(content);
    TableReader in(file.number(), content.size(), key, source);
    Tokenizer again(in);
    same(made, again);
    CHECK(written(again) == content);
  }
  for (size_t i = 0; i < 300; ++i) {
    size_t at = i < 150 ? i : i * content.size() / 300;
    std::string changed = content;
    changed[at] = static_cast<char>(changed[at] ^ 1 << i % 8);
    CHECK(!taken(changed));
    CHECK(!taken(content.substr(0, at)));
  }
  CHECK(!taken(content + '\0'));
  Digest::Key other = key;
  other[7] ^= 1;
  CHECK(!taken(content, other));
  CHECK(!taken(content, key, {9, 11}));
  CHECK(taken(content));
}

}  // namespace

int main() {
  for (const char* json : files) round_trip_and_damage(json);
  return finish("tables");
}
