// Texts that begin as ones met before: the same ids as when all of a text is read, for all flags of added tokens and
// all places where the texts part; the kept texts, and for how long; and threads that share them.
#include <atomic>
#include <random>
#include <thread>

#include "check.hpp"
#include "tokenizer.hpp"

using namespace fasttoken;

namespace {

std::string file(const std::string& rest = "", const char* another = "<z>") {
  auto added = [](int id, const char* content, const char* flags) {
    return "{\"id\":" + std::to_string(id) + ",\"content\":\"" + content + "\"," + flags + "}";
  };
  const std::string plain = R"("single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true)";
  return R"({"version":"1.0",)" + rest + R"("added_tokens":[)" + added(20, "<a>", plain.c_str()) + "," +
         added(21, "<a><bb>", plain.c_str()) + "," + added(22, "<a>  <bb>c", plain.c_str()) + "," +
         added(23, "<r>", R"("single_word":false,"lstrip":false,"rstrip":true,"normalized":false,"special":true)") +
         "," +
         added(24, "<l>", R"("single_word":false,"lstrip":true,"rstrip":false,"normalized":false,"special":true)") +
         "," +
         added(25, "w", R"("single_word":true,"lstrip":false,"rstrip":false,"normalized":false,"special":false)") +
         "," +
         added(26, "ca", R"("single_word":false,"lstrip":false,"rstrip":false,"normalized":true,"special":false)") +
         "," + added(27, another, plain.c_str()) +
         R"(],"model":{"type":"BPE","unk_token":"?","fuse_unk":true,
  "vocab":{"a":0,"b":1,"c":2,"ab":3,"abc":4,"bc":5,"?":6,"aa":7,"aaaa":8," ":9,"\u2581":10,"\u2581a":11},
  "merges":["a b","ab c","b c","a a","aa aa","\u2581 a"]}})";
}

const char* const shards[] = {"a",       "ab",        "abc", " ",        "  ",       "   \n ",    "<a>",   "<a>",
                              "<a><bb>", "<a>  <bb>", "c",   "<bb>",     "<r>",      "<r>  ",     "  <l>", "w",
                              " w ",     "wa",        "ca",  "\xC3\xA9", "\xC2\xA0", "e\xCC\x81", "aaaa"};

std::vector<int32_t> ids_of(const Tokenizer& t, const std::string& text) {
  std::vector<int32_t> ids;
  t.encode_ids(text, true, Tokenizer::scratch(), ids);
  return ids;
}
// By a way that remembers nothing.
std::vector<int32_t> read(const Tokenizer& t, const std::string& text) {
  Scratch s;
  Encoded e;
  t.encode(text, true, s, e);
  return e.ids;
}

std::string more(std::mt19937& random, size_t bytes) {
  std::string text;
  while (text.size() < bytes) {
    if (random() % 20 == 0) text.append(random() % 600, 'b');  // so that the next piece may be marked
    text += shards[random() % std::size(shards)];
  }
  return text;
}

// Conversations that go on from some place within an earlier one, at random.
void equal_to_reading_all(const std::string& rest, const char* another = "<z>") {
  Tokenizer t(file(rest, another));
  std::mt19937 random(5);
  std::vector<std::string> met;
  size_t known = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string text;
    if (!met.empty()) text = met[random() % met.size()];
    text.resize(random() % 4 ? text.size() : random() % (text.size() + 1));
    while (!text.empty() && utf8_continues(static_cast<unsigned char>(text.back()))) text.pop_back();
    if (!text.empty() && static_cast<unsigned char>(text.back()) >= 0xC0) text.pop_back();
    text += more(random, text.size() < 2000 ? 2500 : 1 + random() % 700);
    std::vector<int32_t> expected = read(t, text);
    CHECK(ids_of(t, text) == expected);
    Scratch& s = Tokenizer::scratch();
    IdBuffer out;  // behind another text's, as in a batch
    out.push_back(7);
    t.encode_ids(text, true, s, out);
    CHECK(std::vector<int32_t>(out.data() + 1, out.data() + out.size()) == expected);
    known += t.prompts().find(text).prompt != nullptr;
    if (text.size() > 9000) text.resize(3000 - (utf8_continues(static_cast<unsigned char>(text[3000])) ? 1 : 0));
    if (met.size() < 12)
      met.push_back(text);
    else
      met[random() % met.size()] = text;
  }
  CHECK(known > 500);
}

// A text that goes on so that the last tokens of another would be others, at each place near them.
void equal_where_they_part() {
  std::mt19937 random(6);
  const std::string begin = more(random, 2600) + std::string(600, 'b');  // the next control token is marked
  const char* const ends[] = {"<a>", "<a><bb>", "<a>  <bb>c", "<r> ", "<r>   ", "w", "<a>w", "  <l>", "ca", "<a>ca"};
  for (const char* end : ends) {
    for (const char* another : {"<z>", "  a", " "}) {
      Tokenizer t(file("", another));
      const std::string met = begin + end + "<a>b";
      for (int again = 0; again < 3; ++again) ids_of(t, met);
      CHECK(t.prompts().find(met).whole);
      for (const char* then : {"", "<bb>", "  <bb>c", " ", "   a", "a", "w", "\xC3\xA9", "<l>", "<a>"}) {
        for (const char* last : {"", "<a>", "<a><bb>ab", "a"}) {
          std::string text = begin + end + then + last;
          CHECK(ids_of(t, text) == read(t, text));
        }
      }
    }
  }
}

std::string turns(int n, const std::string& user) {
  std::string text = "<a>you are careful<a>\n";
  for (int i = 0; i < n; ++i)
    text += "<l>user " + user + " asks " + std::to_string(i) + std::string(200, 'b') + "<a>\n<l>it is " +
            std::to_string(i * i) + std::string(300, 'a') + "<a>\n";
  return text;
}

void what_is_kept() {
  Tokenizer t(file());
  const PromptCache& prompts = t.prompts();
  std::string text = turns(8, "A");
  CHECK(!prompts.find(text).prompt);
  ids_of(t, text);
  CHECK(!prompts.find(text).prompt);  // met once
  ids_of(t, text);
  CHECK(prompts.find(text).whole);
  // A turn more goes on from the known text, and takes its place once there are some.
  std::string longer = turns(9, "A");
  PromptCache::Known known = prompts.find(longer);
  CHECK(known.prompt && !known.whole && known.continued && known.upto.end > text.size() - 600);
  ids_of(t, longer);
  CHECK(prompts.find(longer).whole && !prompts.find(text).whole && prompts.find(text).prompt);
  // Another conversation has nothing of it but a short beginning.
  CHECK(!prompts.find(turns(8, "B")).prompt);
  // Plain text is not kept, nor are short texts.
  std::string plain(5000, 'a'), little = turns(2, "C");
  CHECK(little.size() < PromptCache::least);
  for (int again = 0; again < 3; ++again) {
    ids_of(t, plain);
    ids_of(t, little);
  }
  CHECK(!prompts.find(plain).prompt && !prompts.find(little).prompt);
  // One that control tokens are no tokens of is another matter.
  std::vector<int32_t> ids, again;
  t.encode_ids(longer, false, Tokenizer::scratch(), ids);
  CHECK(ids != ids_of(t, longer));
}

void within_its_bound() {
  Tokenizer t(file());
  // More than there may be, and more bytes than there may be.
  for (int i = 0; i < 60; ++i) {
    std::string text = turns(i < 40 ? 5 : 300, "number " + std::to_string(i));
    for (int again = 0; again < 2; ++again) ids_of(t, text);
    CHECK(t.prompts().find(text).whole);
    CHECK(t.prompts().bytes() <= PromptCache::bound && t.prompts().count() <= PromptCache::most_prompts);
  }
  CHECK(!t.prompts().find(turns(5, "number 0")).prompt);
  std::string huge = turns(3000, "huge");
  CHECK(huge.size() > PromptCache::bound / 4);
  for (int again = 0; again < 3; ++again) ids_of(t, huge);
  CHECK(!t.prompts().find(huge).prompt && t.prompts().count() > 0);
}

void threads() {
  Tokenizer t(file());
  std::vector<std::vector<int32_t>> expected;
  auto text = [](int i) { return turns(5 + i / 3, std::string(1, static_cast<char>('A' + i % 3))); };
  for (int i = 0; i < 30; ++i) expected.push_back(read(t, text(i)));
  std::vector<std::thread> pool;
  std::atomic<int> equal{0};
  for (int k = 0; k < 4; ++k)
    pool.emplace_back([&, k] {
      for (int round = 0; round < 5; ++round)
        for (int i = 0; i < 30; ++i) {
          int j = (i * (k + 1)) % 30;
          equal += ids_of(t, text(j)) == expected[static_cast<size_t>(j)];
        }
    });
  for (auto& thread : pool) thread.join();
  CHECK(equal == 600);
}

}  // namespace

void off_by_the_environment() {
  setenv("PRELUDE_TOKENIZER_PROMPTS", "off", 1);
  Tokenizer t(file());
  unsetenv("PRELUDE_TOKENIZER_PROMPTS");
  const std::string text = turns(8, "A");
  const std::vector<int32_t> ids = ids_of(t, text);
  for (int again = 0; again < 3; ++again) CHECK(ids_of(t, text) == ids);
  CHECK(t.prompts().count() == 0 && t.prompts().bytes() == 0);
}

int main() {
  equal_to_reading_all("");
  equal_to_reading_all("", "  a");
  equal_to_reading_all("", " ");
  equal_to_reading_all(
      R"("normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Prepend","prepend":"a"}]},)");
  equal_to_reading_all(
      R"("pre_tokenizer":{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"first","split":true},)");
  equal_where_they_part();
  what_is_kept();
  within_its_bound();
  threads();
  off_by_the_environment();
  return finish("prompts");
}
