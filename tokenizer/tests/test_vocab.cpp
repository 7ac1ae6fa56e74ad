// Tokens made to share one hash: refused with a seed that is known, harmless with one of the process.
#include <cstring>
#include <string>

#include "check.hpp"
#include "vocab/vocab.hpp"

using namespace fasttoken;

namespace {

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
  CHECK(!vocab.find(tokens[Vocab::most_probes]));  // a look-up goes past the bound, and does not throw
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
  a_known_seed();
  an_unknown_seed();
  return finish("vocabulary");
}
