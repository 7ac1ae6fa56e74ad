// The table of single tokens against a map: words of all lengths, among them such as differ in one byte, in zeros or
// in their length alone; tables that fill up and grow; ids that need a table larger than its words do.
#include <map>
#include <random>
#include <string>

#include "cache/word_table.hpp"
#include "check.hpp"

using namespace fasttoken;

namespace {

std::string word_of(std::mt19937& random) {
  // Few bytes, zeros among them, so that words share beginnings and ends.
  static const std::string bytes("\0\1 aeioutnsr\xE4\xB8\xFF", 16);
  std::string out(1 + random() % WordTable::longest, 'a');
  for (char& c : out) c = bytes[random() % (random() % 4 ? 4 : bytes.size())];
  return out;
}

void check_against_map(size_t words, size_t reserved, uint32_t end, uint32_t seed) {
  std::mt19937 random(seed);
  std::map<std::string, uint32_t> expected;
  WordTable table;
  table.reserve(reserved, end);
  {
    WordTable::Filler filler(table);
    for (size_t i = 0; i < words; ++i) {
      uint32_t id = random() % end;
      std::string word = word_of(random);
      filler.add(word, id);
      expected[word] = id;  // the same word again takes the new id
    }
  }
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
  table.reserve(100, 100);
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
    CHECK(probe.mixed(x) == WordTable::mixed(WordKey::of(a.data(), a.size())));
    WordTable::Place over = probe.second(x);
    CHECK(over.line != x.line && over.rest != x.rest && over.wide == x.wide);
  }
}

}  // namespace

int main() {
  check_places();
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    check_against_map(50, 50, 60, seed);
    check_against_map(3'000, 1, 5'000, seed);  // grows again and again
    check_against_map(200'000, 200'000, 200'000, seed);
    check_against_map(1'000, 1'000, 1u << 22, seed);
  }
  return finish("word table");
}
