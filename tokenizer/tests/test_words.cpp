// Ids by the kernels against ids by the pieces of the pattern, one by one: the same for every family, set of
// instructions, place in a block, and cache; and one cache that threads share.
#include <atomic>
#include <cstdlib>
#include <map>
#include <random>
#include <sstream>
#include <thread>

#include "check.hpp"
#include "tokenizer.hpp"

using namespace fasttoken;

namespace {

const char* const gpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+)";
const char* const qwen =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|)"
    R"(\\s+(?!\\S)|\\s+)";
const char* const llama =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|)"
    R"(\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";
const char* const marks =
    R"([^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";
const char* const nemo =
    R"([^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|)"
    R"([^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}|)"
    R"( ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";
const char* const o200k =
    R"([^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";
// DeepSeek-V3's three, one a line.
const char* const deepseek =
    R"(\\p{N}{1,3})"
    "\n"
    R"([\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+)"
    "\n"
    R"([!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|)"
    R"( ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+)";

const char* const shards[] = {
    "a", "the", "The", "Hello", "HELLO", "helloWorld", "'s", "'S", "'ll", "'LL", "'Re", "'", "''", "don't",
    "'\xC5\xBF", "'sx", "1", "12", "123", "1234567", " ", "  ", "   ", "    ", "\n", "\n\n", "\r\n", " \n", "\n ",
    "\n  ", " \n \n", "\t", "\n\t\n ", ".", "...", "!\n", "!\n\n ", "/\n/", "\n/", ".\n/a", "/", "=", "==", "{}",
    "\"", "\x01", "\x7F", "\xC3\xA9", "\xC3\x89", "\xC3\x89t\xC3\xA9", "\xE4\xBD\xA0\xE5\xA5\xBD", "\xE3\x80\x82",
    "\xEF\xBC\x8C", "\xC2\xA0", "\xE3\x80\x80", "\xE2\x80\xA8", "\xC2\x85", "\xF0\x9F\x98\x80", "\xD9\xA3\xD9\xA4",
    "\xF0\x9D\x9F\x98", "\xCC\x81", "e\xCC\x81", "\xC2\xB2", "\xE2\x85\xA7", "\xC7\x85", "\xCA\xB0",
    "\xD0\x9F\xD1\x80", "\xED\x95\x9C",
    // What begins and ends the ranges that a first byte says are letters.
    "\xE3\xBF\xBF", "\xE4\xB6\xBF", "\xE4\xB7\x80", "\xE4\xB7\xBF", "\xE4\xB8\x80", "\xE9\xBF\xBF", "\xEA\x80\x80",
    "\xEC\xBF\xBF", "\xED\x9F\xBF", "\xD0\x80", "\xD1\xBF", "\xD2\x82", "\xDF\xBF", "\xE1\x80\x80", "\xE9\xBD\xBF",
    "\xE9\xBE\x80", "\xE9\xBE\xA5", "\xE9\xBE\xA6",
    // Kana, a dot and a mark among them, and what is none of it.
    "\xE3\x82\xB9\xE3\x82\xBF\xE3\x83\xBC", "\xE3\x83\xBB", "\xE3\x82\x99", "\xE3\x81\x80", "\xE3\x82\x9B", "n't",
    "X'llY", "'lL", "a'd'd'm", "!ab\xC3\xA9", "\xE2\x80\x8B", "_", "-"};

std::string quoted(const std::string& text) {
  std::string out;
  for (char x : text) out += (x == '"' || x == '\\') ? std::string("\\") + x : std::string(1, x);
  return "\"" + out + "\"";
}

// Every byte, and merges of two tokens each, made at random. Several patterns: one a line.
std::string file(const char* pattern, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) utf8_append(tokens.emplace_back(), byte_level_char(static_cast<unsigned char>(b)));
  std::string merges;
  std::map<std::string, bool> known;
  const std::string common = "etaoins'hrdl 0123\n./";
  auto merge = [&](const std::string& a, const std::string& b) {
    if (!known.try_emplace(a + b).second) return;
    tokens.push_back(a + b);
    merges += (merges.empty() ? "[" : ",[") + quoted(a) + "," + quoted(b) + "]";
  };
  // Any two bytes that may stand beside each other are a token in one file or another, so that a cut between them
  // shows.
  for (const char* x : shards)
    for (const char* y : shards) {
      std::string both = std::string(x) + y, first, second;
      size_t at = random() % (both.size() - 1);
      utf8_append(first, byte_level_char(static_cast<unsigned char>(both[at])));
      utf8_append(second, byte_level_char(static_cast<unsigned char>(both[at + 1])));
      merge(first, second);
    }
  for (size_t most = tokens.size() + 600; tokens.size() < most;) {
    auto pick = [&]() -> std::string {
      if (random() % 3) return tokens[random() % tokens.size()];
      std::string out;
      utf8_append(out, byte_level_char(static_cast<unsigned char>(common[random() % common.size()])));
      return out;
    };
    merge(pick(), pick());
  }
  std::string vocab;
  for (size_t i = 0; i < tokens.size(); ++i) vocab += (i ? "," : "") + quoted(tokens[i]) + ":" + std::to_string(i);
  std::string splits;
  std::istringstream lines{std::string(pattern)};
  for (std::string one; std::getline(lines, one);)
    splits += R"({"type":"Split","pattern":{"Regex":")" + one + R"("},"behavior":"Isolated","invert":false},)";
  return R"({"version":"1.0","normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"Sequence","pretokenizers":[)" +
         splits + R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false}]},
    "model":{"type":"BPE","vocab":{)" +
         vocab + "},\"merges\":[" + merges + "]}}";
}

// Spaces become U+2581, in one of these ways.
const char* const marking[] = {
    R"("normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"\u2581"},
      {"type":"Replace","pattern":{"String":" "},"content":"\u2581"}]})",
    R"("normalizer":{"type":"Replace","pattern":{"String":" "},"content":"\u2581"},"pre_tokenizer":{"type":"Split",
      "pattern":{"String":" "},"behavior":"MergedWithPrevious","invert":false})",
    R"("pre_tokenizer":{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"first","split":false})",
    R"("pre_tokenizer":{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"always","split":true})",
    R"("pre_tokenizer":{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"never","split":false})"};

// No pattern: spaces are marked; bytes for what has no token. all_bytes: of each value; else a mark is in no merge
// behind something else.
std::string spaced_file(uint32_t seed, const char* way, bool all_bytes) {
  std::mt19937 random(seed);
  const std::string mark(Bpe::mark);
  std::vector<std::string> tokens = {"?"}, parts = {mark, "a", "b", "e", "t", ".", "\xC3\xA9", "\xE4\xBD\xA0"};
  for (int b = 0; b < 256; ++b) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", b);
    if (all_bytes || b % 7 || b < 128) tokens.push_back(name);
  }
  std::map<std::string, bool> known;
  for (auto& part : parts) known[part] = true;
  std::string merges;
  while (parts.size() < 200) {
    std::string a = parts[random() % parts.size()], b = parts[random() % parts.size()];
    bool marks_only = (a + b).find_first_not_of(mark) == std::string::npos,
         cut_before = b.find(mark) != std::string::npos;
    if (cut_before && !marks_only && !(all_bytes && random() % 100 == 0)) continue;
    if (a.ends_with(".") && b.starts_with("b")) continue;  // some pairs beside the marks join nowhere
    if (!known.try_emplace(a + b).second) continue;
    parts.push_back(a + b);
    merges += (merges.empty() ? "[" : ",[") + quoted(a) + "," + quoted(b) + "]";
  }
  tokens.insert(tokens.end(), parts.begin(), parts.end());
  std::string vocab;
  for (size_t i = 0; i < tokens.size(); ++i) vocab += (i ? "," : "") + quoted(tokens[i]) + ":" + std::to_string(i);
  std::string added;
  for (const char* content :
       {"<s>", "\\n", "\\n\\n", "<a long one, of more bytes than a block of the kernel has, and then some>"}) {
    const bool special = content[1] == 's';
    added += (added.empty() ? "" : ",") + std::string(R"({"id":)") +
             std::to_string(special ? 0 : 1000 + added.size()) + R"(,"content":")" + content +
             R"(","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,)" + R"("special":)" +
             (special ? "true}" : "false}");
  }
  return R"({"version":"1.0","added_tokens":[)" + added + "]," + way +
         R"(,"model":{"type":"BPE","unk_token":"?","fuse_unk":true,"byte_fallback":true,"vocab":{)" + vocab +
         "},\"merges\":[" + merges + "]}}";
}

std::string text(std::mt19937& random, size_t bytes) {
  std::string out;
  size_t pool = random() % 4 ? std::size(shards) : 12 + random() % 20, from = random() % (std::size(shards) - 8);
  while (out.size() < bytes) {
    const char* one = random() % 3 ? shards[random() % pool] : shards[from + random() % 8];
    for (size_t n = random() % 12 ? 1 : random() % 40; n > 0; --n) out += one;
    if (random() % 20 == 0) out += one;
  }
  return out;
}

bool same(const Tokenizer& t, Scratch& s, const std::string& one) {
  Encoded e;
  std::vector<int32_t> ids;
  t.encode(one, true, s, e);
  for (int again = 0; again < 4; ++again) {  // the second time out of the caches, or the third
    ids.clear();
    t.encode_ids(one, true, s, ids);
    if (ids != e.ids) break;
  }
  if (ids == e.ids) return true;
  size_t i = 0;
  while (i < ids.size() && i < e.ids.size() && ids[i] == e.ids[i]) ++i;
  std::printf("differs at id %zu (byte %u) of %zu bytes: %s\n", i, i < e.ids.size() ? e.offsets[i].begin : 0,
              one.size(), one.substr(i < e.ids.size() ? e.offsets[i].begin / 16 * 16 : 0, 60).c_str());
  return false;
}

void kernels_equal_pieces() {
  for (const char* isa : {"scalar", "avx2", "avx512"}) {
    setenv("PRELUDE_TOKENIZER_ISA", isa, 1);
    uint32_t seed = 1;
    for (const char* pattern : {gpt2, qwen, llama, marks, nemo, o200k, deepseek}) {
      Tokenizer t(file(pattern, seed++));
      CHECK(t.cuts_by_kernel());
      std::mt19937 random(seed);
      Scratch s;
      bool equal = true;
      for (int round = 0; equal && round < 1500; ++round) equal = same(t, s, text(random, random() % 260));
      // Long enough that words are looked up some at a time, and, where they repeat themselves, no longer.
      for (int round = 0; equal && round < 40; ++round) equal = same(t, s, text(random, 2000 + random() % 30000));
      for (const char* one : shards)  // every shard at every place of a block, and at the end of the text
        for (size_t at = 40; equal && at < 90; ++at)
          for (const char* next : {"", "a", " b", "\n"})
            equal = equal && same(t, s, std::string(at, 'x').replace(at / 2, 1, " ") + one + next);
      CHECK(equal);
    }
  }
  unsetenv("PRELUDE_TOKENIZER_ISA");
}

// Words beyond ASCII are looked up and guessed many at a time, from the beginning of a text on: what is long or
// short, ASCII among them or alone, seen before or twice at once, comes out as word by word.
void words_together_equal_words_alone() {
  const char* const alphabets[] = {"\xE4\xB8\x80\xE4\xB8\x81\xE4\xB9\x80\xE3\x81\x82\xE3\x82\xA2",
                                   "\xD0\xB0\xD0\xB1\xD1\x80\xD1\x81\xD2\x90",
                                   "\xEA\xB0\x80\xEA\xB0\x81\xED\x95\x9C"};
  uint32_t seed = 40;
  for (const char* pattern : {gpt2, qwen, deepseek, nemo}) {
    Tokenizer t(file(pattern, seed));
    std::mt19937 random(seed++);
    Scratch s;
    bool equal = true;
    for (int round = 0; equal && round < 400; ++round) {
      std::string_view letters = alphabets[round % 3];
      const size_t size = round % 3 == 1 ? 2 : 3;
      std::vector<std::string> phrases;
      for (int i = 0; i < 40; ++i) {
        std::string& one = phrases.emplace_back();
        for (size_t n = 1 + random() % (i % 8 ? 12 : 60); n > 0; --n)
          one += random() % 30 ? std::string(letters.substr(random() % (letters.size() / size) * size, size)) : "the";
      }
      const char* const between[] = {" ", ". ", "\xE3\x80\x82", "\n", ", a", " than ", "1", "\xEF\xBC\x8C"};
      std::string one;
      for (size_t most = random() % (round % 20 ? 1500 : 12000); one.size() < most;)
        one += phrases[random() % (round % 5 ? phrases.size() : 3)] + between[random() % std::size(between)];
      equal = same(t, s, one);
    }
    CHECK(equal);
  }
}

void hashes_of_texts_depend_on_each_byte() {
  std::mt19937 random(3);
  for (size_t n = 1; n <= 200; ++n) {
    // On the heap without room to spare, so that a sanitizer sees what is read beside it.
    std::vector<char> bytes(n);
    for (char& b : bytes) b = static_cast<char>(random());
    const uint64_t hash = hash_of_text(bytes.data(), n);
    for (char& b : bytes) {
      b = static_cast<char>(b ^ 1 << random() % 8);
      CHECK(hash_of_text(bytes.data(), n) != hash);
      hash_of_text(std::vector<char>(bytes).data(), n);
    }
  }
}

void words_are_met_again() {
  MetBefore met;
  met.reserve();
  CHECK(met.bytes() <= size_t{1} << 17);
  std::mt19937_64 random(6);
  std::vector<uint64_t> hashes(5'000);
  size_t known = 0, still = 0;
  for (uint64_t& hash : hashes) known += met.again(hash = random());
  for (uint64_t hash : hashes) still += met.again(hash);
  CHECK(known < 20 && still > 4'950);
  // Four of one row beside each other; the one met longest ago goes.
  for (uint64_t row : {uint64_t{0}, uint64_t{5} << 50, ~uint64_t{0} << 50}) {
    auto with = [&](uint64_t mark) { return row | mark << 8; };
    MetBefore other;
    other.reserve();
    for (uint64_t mark : {1, 0x10, 0xFFFE, 0x8000}) CHECK(!other.again(with(mark)));
    for (uint64_t mark : {0x8000, 0xFFFE, 0x10, 1}) CHECK(other.again(with(mark)));
    CHECK(!other.again(with(0x300)) && other.again(with(0x10)) && !other.again(with(1)));
  }
}

// Clauses that are taken for one another, so that some are looked for at their first time.
void clauses_of_one_mark_are_their_own() {
  Tokenizer t(file(qwen, 3));
  std::map<uint64_t, std::string> seen;
  Scratch s;
  bool equal = true;
  size_t pairs = 0;
  for (uint32_t i = 0; i < 160'000; ++i) {
    std::string clause;
    for (uint32_t k = 0, left = i; k < 9; ++k, left /= 5) utf8_append(clause, 0x4E00 + left % 5 * 7);
    const uint64_t hash = hash_of_text(clause.data(), clause.size());
    auto [at, fresh] = seen.try_emplace((hash >> 50) << 16 | (hash >> 8 & 0xFFFF) | 1, clause);
    if (fresh) continue;
    ++pairs;
    equal &= same(t, s, at->second) && same(t, s, clause) && same(t, s, at->second);
  }
  CHECK(equal && pairs > 5);
}

void spaced_words_equal_pieces() {
  for (const char* isa : {"scalar", "avx2", "avx512"}) {
    setenv("PRELUDE_TOKENIZER_ISA", isa, 1);
    for (uint32_t seed = 0; seed < 2 * std::size(marking); ++seed) {
      Tokenizer t(spaced_file(seed, marking[seed / 2], seed % 2));
      CHECK(t.cuts_by_kernel());
      std::mt19937 random(seed);
      Scratch s;
      bool equal = true;
      const char* const more[] = {" ",
                                  "  ",
                                  "a",
                                  "the",
                                  " abet",
                                  "tea",
                                  ".",
                                  "\xC3\xA9",
                                  "\xE4\xBD\xA0",
                                  "<s>",
                                  "\n",
                                  "\xF0\x9F\x98\x80",
                                  "\xE2\x96\x81",
                                  "beat",
                                  ".b",
                                  "<a long one, of more bytes than a block of the kernel has, and then some>"};
      for (int round = 0; equal && round < 250; ++round) {
        std::string one;
        for (size_t n = random() % 60; n > 0; --n) {
          size_t which = random() % std::size(more);
          if (which == 12 && round % 5) continue;
          for (size_t k = random() % 30 ? 1 : random() % 90; k > 0; --k) one += more[which];
        }
        equal = same(t, s, one);
      }
      CHECK(equal);
    }
  }
  unsetenv("PRELUDE_TOKENIZER_ISA");
}

// What is only almost one of the families is left to the engine.
// Chats: what lies between control tokens may come out of the cache of such stretches, also beside what is
// normalized.
void stretches_between_control_tokens() {
  std::string json = file(qwen, 5);
  json.insert(json.find("\"normalizer\""), R"("added_tokens":[{"id":20000,"content":"<c>","single_word":false,
    "lstrip":false,"rstrip":false,"normalized":false,"special":true},{"id":20001,"content":"<r>","single_word":false,
    "lstrip":false,"rstrip":true,"normalized":false,"special":true}],)");
  Tokenizer t(json);
  CHECK(t.cuts_by_kernel());
  std::mt19937 random(6);
  Scratch s;
  std::vector<std::string> stretches;
  for (int i = 0; i < 60; ++i) stretches.push_back(text(random, random() % 140));
  bool equal = true;
  int kept = 0, rewritten = 0;
  for (int round = 0; equal && round < 300; ++round) {
    std::string chat;
    for (size_t n = random() % 12; n > 0; --n)
      chat += (random() % 3 ? "<c>" : "<r>") + stretches[random() % stretches.size()];
    equal = same(t, s, chat);
    // What was rewritten says so, out of the cache or not.
    for (int again = 0; again < 2; ++again) {
      IdBuffer ids;
      bool as_it_is = t.encode_ids(chat, true, s, ids);
      equal = equal && (!as_it_is || t.normalize(chat, s) == chat);
      ++(as_it_is ? kept : rewritten);
    }
  }
  CHECK(equal);
  CHECK(kept > 50 && rewritten > 50);
}

// Words of one token to more than a line of any cache holds, met again and again: short ones and longer ones, of
// ASCII and of characters of two bytes and three.
void words_of_many_tokens() {
  uint32_t seed = 90;
  for (const char* pattern : {gpt2, qwen}) {
    Tokenizer t(file(pattern, seed));
    std::mt19937 random(seed++);
    Scratch s;
    const char* const letters[] = {"zqxjk", "\xD0\xB6\xD1\x8B\xD1\x87\xD1\x86\xD1\x8D",
                                   "\xE9\xBE\x8D\xE9\xBA\x92\xE9\xB9\xBF\xE9\xBC\x93\xE9\xBD\x8B"};
    std::vector<std::string> words;
    for (size_t kind = 0; kind < 3; ++kind)
      for (size_t n = 1; n <= 45; n += 1 + kind) {
        std::string& word = words.emplace_back(" ");
        while (word.size() + kind < n) word.append(letters[kind] + random() % 5 * (kind + 1), kind + 1);
      }
    std::vector<size_t> made(words.size());
    for (size_t i = 0; i < words.size(); ++i) {
      std::vector<int32_t> ids;
      t.encode_ids(words[i], true, s, ids);
      made[i] = ids.size();
    }
    CHECK(*std::max_element(made.begin(), made.end()) > ClauseCache::most_ids);
    bool equal = true;
    for (int round = 0; equal && round < 30; ++round) {
      std::string one;
      for (int n = 0; n < 400; ++n) one += words[random() % words.size()];
      equal = same(t, s, one);
    }
    CHECK(equal);
  }
}

// Capitals, small letters and letters that are both, in every order, at every place of a block.
void letters_of_both_cases() {
  const char* const letters[] = {
      "A",        "\xC3\x89",     "\xC7\x85", "\xD0\x9F", "a", "\xC3\xA9", "\xD1\x8F", "\xE4\xB8\xAD", "\xE6\x96\x87",
      "\xCA\xB0", "\xED\x95\x9C", "\xD7\xA9"};
  const char* const between[] = {" ", ".", "'s", "\n", "1", "'", " (", "\xCC\x81"};
  for (const char* isa : {"scalar", "avx2", "avx512"}) {
    setenv("PRELUDE_TOKENIZER_ISA", isa, 1);
    uint32_t seed = 80;
    for (const char* pattern : {nemo, o200k, qwen}) {
      Tokenizer t(file(pattern, seed));
      std::mt19937 random(seed++);
      Scratch s;
      bool equal = true;
      for (int round = 0; equal && round < 6000; ++round) {
        std::string one;
        for (size_t n = random() % 60; n > 0; --n)
          one += random() % (round % 2 ? 4 : 40) ? letters[random() % std::size(letters)]
                                                 : between[random() % (std::size(between) - (round % 3 != 0))];
        equal = same(t, s, one);
      }
      CHECK(equal);
    }
  }
  unsetenv("PRELUDE_TOKENIZER_ISA");
}

// A stretch is read where it lies, in front of other text, which would make words longer were it part of it.
void what_follows_a_stretch_is_not_its() {
  const char* const behind[] = {"s~", "e~", "ll~",           "1~",        "\\n~", " ~",
                                "/~", "A~", "\xE4\xB8\xAD~", "\xCC\x81~", ".~"};
  std::string added;
  for (size_t i = 0; i < std::size(behind); ++i)
    added += std::string(i ? "," : "") + "{\"id\":" + std::to_string(20000 + i) + ",\"content\":\"" + behind[i] +
             R"(","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true})";
  for (const char* isa : {"scalar", "avx2", "avx512"}) {
    setenv("PRELUDE_TOKENIZER_ISA", isa, 1);
    uint32_t seed = 60;
    for (const char* pattern : {gpt2, qwen, llama, marks, nemo, o200k, deepseek}) {
      std::string json = file(pattern, seed);
      json.insert(json.find("\"normalizer\""), "\"added_tokens\":[" + added + "],");
      Tokenizer t(json);
      CHECK(t.cuts_by_kernel());
      std::mt19937 random(seed++);
      Scratch s;
      bool equal = true;
      auto token = [&](size_t i) { return i == 4 ? std::string("\n~") : std::string(behind[i]); };
      for (int round = 0; equal && round < 400; ++round) {
        std::string one;
        for (int n = 0; n < 8; ++n) one += text(random, random() % 200) + token(random() % std::size(behind));
        equal = same(t, s, one);
      }
      for (const char* shard : shards)  // each behind each of which a stretch may end, at places of a block
        for (size_t i = 0; i < std::size(behind); ++i)
          for (size_t at : {1, 17, 61, 62, 63, 64, 65, 80, 130})
            equal = equal && same(t, s,
                                  std::string(at, 'x').replace(at / 2, 1, " ") + shard + token(i) + "a long end " +
                                      std::string(90, 'y'));
      CHECK(equal);
    }
  }
  unsetenv("PRELUDE_TOKENIZER_ISA");
}

void near_misses_are_not_recognized() {
  for (std::string pattern : {gpt2, qwen, llama, nemo, o200k, deepseek}) {
    auto change = [&](const std::string& from, const std::string& to) {
      size_t at = pattern.find(from);
      return at == std::string::npos ? "" : std::string(pattern).replace(at, from.size(), to);
    };
    for (const std::string& other :
         {change(R"(\\s+(?!\\S))", R"(\\s+(?=\\S))"), change(R"(|\\s+(?!\\S))", ""),
          change(R"(\\p{L}+)", R"(\\p{L}*?a)"), change(" ?[", " ["), change("'re", "'rx"),
          change(R"([^\\s\\p{L}\\p{N}]+)", R"([^\\s\\p{L}]+)"), change(R"(\\r\\n/)", R"(\\r/)"),
          change(R"([\\r\\n]+)", R"(\\n+)"), change("'ll|'d)?|", "'ll)?|"), change("[A-Za-z]", "[A-Za-y]"),
          change("/:;", ":;"), change("{1,3}\n", "{1,4}\n"), change("\n[", "\n[0-9"), change("\n", "|\n")}) {
      if (other.empty() || other == pattern) continue;
      Tokenizer t(file(other.c_str(), 3));
      CHECK(!t.cuts_by_kernel());
    }
  }
}

// Two tokens stand beside each other just when their bytes, merged from the first on, come out as the two.
void neighbours_as_merging_has_them() {
  std::mt19937 random(21);
  MergeScratch scratch;
  int stood = 0, fell = 0, seen = 0;  // seen: at once, of those that stand
  for (int round = 0; round < 150; ++round) {
    uint32_t letters = 1 + random() % 4, ranks = 0;
    MergeTable merges;
    merges.reserve(64, 256);
    std::vector<std::vector<uint32_t>> texts;  // of a token, its letters
    std::map<std::vector<uint32_t>, uint32_t> ids;
    for (uint32_t i = 0; i < letters; ++i) ids[texts.emplace_back(1, i)] = i;
    for (uint32_t count = random() % 30; ranks < count; ++ranks) {
      size_t a = random() % texts.size(), b = random() % texts.size();
      std::vector<uint32_t> joined = texts[a];
      joined.insert(joined.end(), texts[b].begin(), texts[b].end());
      auto [at, is_new] = ids.emplace(joined, static_cast<uint32_t>(texts.size()));
      if (is_new) texts.push_back(joined);
      merges.add(static_cast<uint32_t>(a), static_cast<uint32_t>(b), ranks, at->second);
    }
    std::vector<Merge> order = merges.in_order();  // a pair that came twice once, at its later rank
    Merger merger(merges, ranks);
    Spines spines;
    spines.build(merges, order, static_cast<uint32_t>(texts.size()), [&](uint32_t id) { return id < letters; });
    auto merged = [&](std::vector<uint32_t> symbols) {
      ScratchVector<Symbol> word;
      for (uint32_t id : symbols) word.push_back({id, 1});
      word.resize(merger.queue(word.data(), word.size(), scratch));
      std::vector<uint32_t> out;
      for (Symbol symbol : word) out.push_back(symbol.id);
      return out;
    };
    for (uint32_t a = 0; a < texts.size(); ++a) {
      for (uint32_t b = 0; b < texts.size(); ++b)
        if (!spines.known(a) || !spines.known(b)) CHECK(!spines.surely_stands(a, b));
      if (!spines.known(a)) continue;
      CHECK(merged(texts[a]) == std::vector<uint32_t>{a});
      for (uint32_t b = 0; b < texts.size(); ++b) {
        if (!spines.known(b)) continue;
        std::vector<uint32_t> both = texts[a];
        both.insert(both.end(), texts[b].begin(), texts[b].end());
        bool stands = spines.stands(merges, a, b);
        CHECK(stands == (merged(both) == std::vector<uint32_t>{a, b}));
        ++(stands ? stood : fell);
        CHECK(stands || !spines.surely_stands(a, b));
        seen += spines.surely_stands(a, b);
      }
    }
  }
  CHECK(stood > 1000 && fell > 1000 && seen * 3 > stood && seen < stood);
}

// One set of the cache for many words, and every answer is none or the right one, whatever threads do.
template <class Cache>
void cache_in_threads(size_t bytes) {
  Cache cache;
  cache.reserve(bytes);
  CHECK(cache.bytes() == bytes);
  auto word = [](uint32_t i) {
    std::string out = "word " + std::to_string(i * 7919 % 4096);
    return out + std::string(i % (Cache::longest - out.size() + 1), 'x');
  };
  std::atomic<int> wrong{0}, found{0};
  std::vector<std::thread> pool;
  for (uint32_t k = 0; k < 4; ++k)
    pool.emplace_back([&, k] {
      for (uint32_t i = k; i < 60000; ++i) {
        std::string w = word(i % 5 ? i % 7 : i % 97);
        int32_t n = w[5] * 7 % static_cast<int32_t>(Cache::most_ids) + 1, row[Cache::most_ids], ids[Cache::most_ids];
        for (int32_t j = 0; j < n; ++j) row[j] = static_cast<int32_t>(w.size()) * 1000 + j;
        auto key = Cache::Key::of(w.data(), w.size());
        size_t known = cache.find(key, key.hash(), ids);
        if (known) {
          ++found;
          wrong += known != static_cast<size_t>(n) || !std::equal(row, row + n, ids);
        } else {
          cache.put(key, key.hash(), row, static_cast<size_t>(n));
        }
      }
    });
  for (auto& thread : pool) thread.join();
  CHECK(wrong == 0);
  CHECK(found > 100);
}

// Every number of ids and every length of a word comes back as it was put.
template <class Cache>
void cache_keeps_rows() {
  Cache cache;
  cache.reserve(size_t{1} << 20, size_t{1} << 20);
  bool equal = true;
  for (size_t length = 1; length <= Cache::longest; ++length)
    for (size_t n = 1; n <= Cache::most_ids; ++n) {
      std::string w(length, static_cast<char>(n));
      auto key = Cache::Key::of(w.data(), w.size());
      int32_t row[Cache::most_ids], ids[Cache::most_ids];
      for (size_t j = 0; j < n; ++j) row[j] = static_cast<int32_t>(length * 100 + j);
      row[n - 1] = 0;
      cache.put(key, key.hash(), row, n);
      equal = equal && cache.find(key, key.hash(), ids) == n && std::equal(row, row + n, ids);
    }
  CHECK(equal);
}

// Of a small part at first, then of twice as much again and again, and never of more than there is; whatever
// threads make of it together, what is found is what was put.
template <class Cache>
void cache_grows_while_words_come_in() {
  constexpr size_t bytes = size_t{1} << 20, at_first = size_t{1} << 14;
  Cache cache;
  cache.reserve(bytes, at_first);
  const size_t lines = cache.used_lines();
  CHECK(lines >= 4 && lines * 32 < bytes / 16);
  std::atomic<size_t> wrong{0}, lost{0};
  std::vector<std::thread> pool;
  for (uint32_t k = 0; k < 4; ++k)
    pool.emplace_back([&, k] {
      for (uint32_t i = 0; i < 40'000; ++i) {
        std::string w = "word " + std::to_string(i * 4 + k);
        auto key = Cache::Key::of(w.data(), w.size());
        int32_t ids[Cache::most_ids], row[] = {static_cast<int32_t>(i), static_cast<int32_t>(k)};
        cache.put(key, key.hash(), row, 2);
        size_t n = cache.find(key, key.hash(), ids);
        lost += n == 0;  // another thread has written over it, or the cache has grown just now
        wrong += n != 0 && (n != 2 || ids[0] != row[0] || ids[1] != row[1]);
      }
    });
  for (auto& thread : pool) thread.join();
  CHECK(wrong == 0 && lost < 40'000);
  CHECK(cache.used_lines() >= 8 * lines && cache.used_lines() * (Cache::longest + 1) <= bytes);
}

void threads_share_a_tokenizer() {
  Tokenizer t(file(qwen, 9));
  std::mt19937 random(4);
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> expected;
  Scratch s;
  for (int i = 0; i < 40; ++i) {
    Encoded e;
    t.encode(texts.emplace_back(text(random, 3000)), true, s, e);
    expected.push_back(e.ids);
  }
  std::atomic<int> equal{0};
  std::vector<std::thread> pool;
  for (int k = 0; k < 6; ++k)
    pool.emplace_back([&] {
      for (int round = 0; round < 3; ++round)
        for (size_t i = 0; i < texts.size(); ++i) {
          std::vector<int32_t> ids;
          t.encode_ids(texts[i], true, Tokenizer::scratch(), ids);
          equal += ids == expected[i];
        }
    });
  for (auto& thread : pool) thread.join();
  CHECK(equal == 6 * 3 * 40);
}

}  // namespace

int main() {
  kernels_equal_pieces();
  words_together_equal_words_alone();
  hashes_of_texts_depend_on_each_byte();
  words_are_met_again();
  clauses_of_one_mark_are_their_own();
  spaced_words_equal_pieces();
  stretches_between_control_tokens();
  words_of_many_tokens();
  letters_of_both_cases();
  what_follows_a_stretch_is_not_its();
  near_misses_are_not_recognized();
  neighbours_as_merging_has_them();
  cache_in_threads<WordCache>(1024);
  cache_in_threads<ClauseCache>(4096);
  cache_keeps_rows<WordCache>();
  cache_keeps_rows<ClauseCache>();
  cache_grows_while_words_come_in<WordCache>();
  cache_grows_while_words_come_in<ClauseCache>();
  threads_share_a_tokenizer();
  return finish("words");
}
