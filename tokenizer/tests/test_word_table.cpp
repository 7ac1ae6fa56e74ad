// The table of single tokens against a map: words of all lengths, among them such as differ in one byte, in zeros or
// in their length alone; tables that fill up; ids that need a table larger than its words do.
#include <cstring>
#include <map>
#include <random>
#include <string>

#include "cache/word_table.hpp"
#include "check.hpp"
#include "vocab/vocab.hpp"

using namespace fasttoken;

namespace {

std::string word_of(std::mt19937& random) {
  // Few bytes, zeros among them, so that words share beginnings and ends.
  static const std::string bytes("\0\1 aeioutnsr\xE4\xB8\xFF", 16);
  std::string out(1 + random() % WordTable::longest, 'a');
  for (char& c : out) c = bytes[random() % (random() % 4 ? 4 : bytes.size())];
  return out;
}

void check_against_map(size_t words, uint32_t end, uint32_t seed) {
  std::mt19937 random(seed);
  std::map<std::string, uint32_t> expected;
  WordTable table;
  std::vector<WordTable::Word> all;
  for (size_t i = 0; i < words; ++i) {
    uint32_t id = random() % end;
    std::string word = word_of(random);
    all.push_back({WordKey::of(word.data(), word.size()), id});
    expected[word] = id;  // the same word again takes the new id
  }
  table.build(all, end);
  size_t second = 0;
  for (auto& [word, id] : expected) {
    CHECK(table.find(word) == id);
    WordTable::Probe probe = table.probe();
    WordTable::Place place = probe.place(WordKey::of(word.data(), word.size()));
    if (probe.find_in(place) == id) continue;
    // In its second line, which is asked only where the first is full.
    CHECK(probe.find_in(place) == WordTable::none && probe.lines[place.line].full());
    ++second;
  }
  CHECK(words < 10'000 || second > 0);
  for (size_t i = 0; i < 50'000; ++i) {
    std::string word = word_of(random);
    auto at = expected.find(word);
    CHECK(table.find(word) == (at == expected.end() ? WordTable::none : at->second));
  }
}

// A word is its line and its entry: both together are the same only for the same word.
void check_places() {
  std::mt19937 random(9);
  WordTable table;
  table.build({}, 100);
  WordTable::Probe probe = table.probe();
  for (int i = 0; i < 100'000; ++i) {
    std::string a = word_of(random), b = a;
    switch (random() % 3) {
      case 0:
        b[random() % b.size()] ^= static_cast<char>(1 << random() % 8);
        break;
      case 1:
        b.resize(1 + random() % WordTable::longest);  // with zeros
        break;
      default:
        b = word_of(random);
    }
    auto x = probe.place(WordKey::of(a.data(), a.size())), y = probe.place(WordKey::of(b.data(), b.size()));
    bool same = x.line == y.line && x.rest == y.rest && (!x.wide || x.low == y.low);
    CHECK(same == (a == b));
    WordTable::Place over = probe.second(x);
    CHECK(over.line != x.line && over.rest != x.rest && over.wide == x.wide);
  }
}

// ---- the vocabulary: strings made to share one hash, with the seed known and unknown

std::string bytes_of(uint64_t a, uint64_t b) {
  std::string out(16, '\0');
  std::memcpy(out.data(), &a, 8);
  std::memcpy(out.data() + 8, &b, 8);
  return out;
}

// 16 bytes whose second word makes the same state of any first one.
std::vector<std::string> colliding(const HashSeed& seed, size_t count) {
  std::vector<std::string> out;
  for (uint64_t i = 0; i < count; ++i) out.push_back(bytes_of(i * 0x9E3779B97F4A7C15u, seed.of_words));
  return out;
}

// How many of the tokens a vocabulary takes before it refuses one.
size_t taken(Vocab& vocab, const std::vector<std::string>& tokens) {
  size_t n = 0;
  try {
    for (; n < tokens.size(); ++n) vocab.add(tokens[n], static_cast<uint32_t>(n));
  } catch (const FileError&) {
  }
  return n;
}

void a_known_seed() {
  const HashSeed seed{0x123456789ABCDEFu, 0xFEDCBA987654321u};
  const std::vector<std::string> tokens = colliding(seed, 4 * Vocab::most_probes);
  CHECK(hash_bytes(tokens[1].data(), 16, seed) == hash_bytes(tokens[2].data(), 16, seed));
  Vocab vocab(seed);
  CHECK(taken(vocab, tokens) == Vocab::most_probes);
  for (size_t i = 0; i < Vocab::most_probes; ++i) CHECK(vocab.find(tokens[i]) == static_cast<uint32_t>(i));
}

void an_unknown_seed() {
  for (const HashSeed& guess : {HashSeed{0, 0}, HashSeed{0x2545F4914F6CDD1Du, 1}, HashSeed::random()}) {
    const std::vector<std::string> tokens = colliding(guess, 50'000);
    CHECK(hash_bytes(tokens[1].data(), 16, guess) == hash_bytes(tokens[2].data(), 16, guess));
    Vocab own;
    CHECK(taken(own, tokens) == tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) CHECK(own.find(tokens[i]) == static_cast<uint32_t>(i));
  }
}

}  // namespace

int main() {
  check_places();
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    check_against_map(50, 60, seed);
    check_against_map(3'000, 5'000, seed);
    check_against_map(200'000, 200'000, seed);
    check_against_map(1'000, 1u << 22, seed);
  }
  a_known_seed();
  an_unknown_seed();
  return finish("word table and vocabulary");
}
