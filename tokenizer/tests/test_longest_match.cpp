// Words by longest match against the merging of their bytes, for vocabularies whose merges cross characters.
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bpe/longest_match.hpp"
#include "check.hpp"

using namespace fasttoken;

namespace {

using Ids = std::vector<uint32_t>;

struct Made {
  Vocab vocab;
  MergeTable merges;
  std::vector<Merge> order;
  LongestMatch::ByteIds byte_ids{};
  uint32_t ranks = 0;
  LongestMatch matcher;
  WordTable words;  // as bpe.hpp makes it: words that come out as one token
};

// Characters that share first or last bytes, so that merges of half characters pay.
const char* const alphabets[] = {
    "\xE3\x81\x82,\xE3\x81\x84,\xE3\x82\x82,\xE3\x82\xA2,\xE4\xB8\x80,\xE4\xB8\x81,\xE4\xB9\x80,\xE4\xB9\x82,x",
    "\xD0\xB0,\xD0\xB1,\xD1\x80,\xD1\x81,\xCC\x81,a,b,\x20",
    "\xE4\xB8\x80,\xF0\x9F\x98\x80,\xF0\x9F\x98\x81,\xF0\x9F\x99\x80,\xE2\x80\x8D,\xE2\x81\x8D,a,\xC3\xA9",
};

std::string text_of(std::mt19937& random, const std::vector<std::string>& letters, size_t most) {
  std::string out = random() % 3 == 0 ? " " : "";
  std::vector<std::string> phrases;
  for (int i = 0; i < 6; ++i) {
    phrases.emplace_back();
    for (size_t n = 1 + random() % 4; n > 0; --n) phrases.back() += letters[random() % letters.size()];
  }
  while (out.size() < most)
    out += random() % 2 ? phrases[random() % phrases.size()] : letters[random() % letters.size()];
  return out;
}

std::string name_of(std::string_view bytes) {
  std::string out;
  for (unsigned char b : bytes) utf8_append(out, byte_level_char(b));
  return out;
}

// Merges as training picks them: pairs that stand beside each other in some text, or now and then any two tokens.
void train(std::mt19937& random, const std::vector<std::string>& letters, uint32_t count, Made& made) {
  std::vector<std::string> tokens;
  made.vocab.reserve(256 + count, 8 * (256 + count));
  for (unsigned b = 0; b < 256; ++b) {
    tokens.emplace_back(1, static_cast<char>(b));
    made.byte_ids[b] = b;
    made.vocab.add(name_of(tokens.back()), b);
  }
  made.merges.reserve(count + 1, 256 + count);
  Ids symbols;
  for (unsigned char b : text_of(random, letters, 3000)) symbols.push_back(b);
  for (uint32_t rank = 0; rank < count; ++rank) {
    size_t at = random() % (symbols.size() - 1);
    uint32_t a = symbols[at], b = symbols[at + 1];
    if (random() % 40 == 0) a = random() % static_cast<uint32_t>(tokens.size());
    std::string joined = tokens[a] + tokens[b];
    if (joined.size() > 24 || made.vocab.find(name_of(joined)) || made.merges.find(a, b).rank != no_rank) continue;
    uint32_t id = static_cast<uint32_t>(tokens.size());
    tokens.push_back(joined);
    made.vocab.add(name_of(joined), id);
    made.merges.add(a, b, made.ranks, id);
    made.order.push_back({a, b, made.ranks++, id});
    Ids next;
    for (size_t i = 0; i < symbols.size(); ++i) {
      bool both = i + 1 < symbols.size() && symbols[i] == a && symbols[i + 1] == b;
      next.push_back(both ? id : symbols[i]);
      i += both;
    }
    symbols.swap(next);
  }
  made.matcher.build(made.merges, made.order, made.vocab, made.byte_ids);
  std::vector<WordTable::Word> words;
  for (uint32_t id = 0; id < tokens.size(); ++id)
    if (tokens[id].size() <= WordTable::longest && made.matcher.known(id))
      words.push_back({WordKey::of(tokens[id].data(), tokens[id].size()), id});
  made.words.build(words, static_cast<uint32_t>(tokens.size()));
}

std::vector<Symbol> merged(const Made& made, std::string_view word, MergeScratch& s) {
  std::vector<Symbol> out;
  for (unsigned char b : word) out.push_back({b, 1});
  out.resize(Merger(made.merges).queue(out.data(), out.size(), s));
  return out;
}

bool same(const Made& made, const std::string& word, LongestMatchScratch& g, MergeScratch& s, bool& said) {
  std::vector<Symbol> expected = merged(made, word, s);
  said = made.matcher.encode(Merger(made.merges), made.merges, made.byte_ids, &made.words, word, g, s);
  if (!said) return true;
  return std::equal(expected.begin(), expected.end(), s.chain.begin(), s.chain.end());
}

void longest_match_is_what_merging_gives() {
  std::mt19937 random(31);
  LongestMatchScratch g;
  MergeScratch s;
  size_t asked = 0, answered = 0;
  for (int round = 0; round < 150; ++round) {
    const std::vector<std::string> letters = split(alphabets[round % 3], ',');
    Made made;
    train(random, letters, 20 + random() % 300, made);
    for (int i = 0; i < 120; ++i) {
      std::string word = text_of(random, letters, 1 + random() % (i % 10 ? 70 : 700));
      if (!made.matcher.takes(word)) continue;
      for (int again = 0; again < 2; ++again) {  // the second time by the pairs that are remembered
        bool said;
        CHECK(same(made, word, g, s, said));
        ++asked;
        answered += said;
      }
    }
  }
  CHECK(asked > 15'000 && answered > asked * 8 / 10);
  std::printf("longest match: %zu of %zu words said\n", answered, asked);
}

void threads_share_what_they_remember() {
  std::mt19937 random(5);
  std::vector<std::string> letters;
  for (unsigned i = 0; i < 60; ++i) utf8_append(letters.emplace_back(), 0x4E00 + 61 * i);
  Made made;
  train(random, letters, 900, made);
  std::vector<std::string> words;
  for (int i = 0; i < 400; ++i) words.push_back(text_of(random, letters, 60) + letters[0]);
  std::vector<int> wrong(4);
  std::vector<std::thread> running;
  for (size_t t = 0; t < wrong.size(); ++t)
    running.emplace_back([&, t] {
      LongestMatchScratch g;
      MergeScratch s;
      bool said;
      for (int round = 0; round < 5; ++round)
        for (size_t i = 0; i < words.size(); ++i)
          wrong[t] += !same(made, words[(i * (t + 1)) % words.size()], g, s, said);
    });
  for (auto& one : running) one.join();
  for (int n : wrong) CHECK(n == 0);
}

// Characters of one place each: looking for them would take the square of their number.
void extensions_that_share_a_hash_are_refused() {
  const auto refused = [](uint64_t most, auto&& takes) {
    Extensions made;
    made.reserve(100'000);
    uint32_t count = 0;
    try {
      for (uint64_t key = 0; count < most; ++key) {
        const uint32_t node = static_cast<uint32_t>(key >> 16), c = static_cast<uint32_t>(key & 0xFFFF);
        if (takes(Extensions::hash_of(node, c))) made.add(node, c, ++count);
      }
    } catch (const FileError&) {
      return true;
    }
    return false;
  };
  CHECK(!refused(100'000, [](uint64_t) { return true; }));
  CHECK(refused(20'000, [](uint64_t hash) { return hash >> 48 == 7; }));
}

}  // namespace

int main() {
  extensions_that_share_a_hash_are_refused();
  longest_match_is_what_merging_gives();
  threads_share_what_they_remember();
  return finish("longest match");
}
