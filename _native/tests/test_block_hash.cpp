// The hash of token blocks: it names the whole prefix, and blocks that hardly differ collide no more than by chance.
#include <algorithm>
#include <bit>
#include <vector>

#include "check.hpp"
#include "prelude/block_hash.hpp"

using namespace prelude;
using Tokens = std::vector<int32_t>;

static std::vector<uint64_t> chain(const Tokens& tokens, int32_t size, uint64_t salt = 0) {
  std::vector<uint64_t> out;
  uint64_t h = chain_start(salt, 0);
  for (size_t at = 0; at + static_cast<size_t>(size) <= tokens.size(); at += static_cast<size_t>(size)) {
    out.push_back(h = chain_next(h, content_hash(&tokens[at], size, 0)));
  }
  return out;
}

static void every_token_tells(int32_t size) {
  Random random{7};
  Tokens tokens(static_cast<size_t>(8 * size));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random.below(150'000));
  const std::vector<uint64_t> plain = chain(tokens, size);
  for (size_t at = 0; at < tokens.size(); ++at) {
    tokens[at] ^= 1;
    const std::vector<uint64_t> other = chain(tokens, size);
    for (size_t k = 0; k < 8; ++k) CHECK((other[k] == plain[k]) == (k < at / static_cast<size_t>(size)));
    tokens[at] ^= 1;
  }
  const std::vector<uint64_t> salted = chain(tokens, size, 1);
  for (size_t k = 0; k < 8; ++k) CHECK(salted[k] != plain[k]);
}

// One token up by one flips each of the 64 bits about half of the time.
static void every_bit_moves() {
  Random random{1};
  int flips[64] = {};
  for (int round = 0; round < 400; ++round) {
    Tokens tokens(16);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random.below(150'000));
    const uint64_t before = chain(tokens, 16)[0];
    ++tokens[static_cast<size_t>(random.below(16))];
    const uint64_t changed = before ^ chain(tokens, 16)[0];
    for (int bit = 0; bit < 64; ++bit) flips[bit] += static_cast<int>(changed >> bit & 1);
  }
  for (const int n : flips) CHECK(n > 140 && n < 260);
}

// The trie keeps 32 of the bits and finds a line by the low ones of these.
template <class Block>
static void spreads(Block block) {
  constexpr int32_t kCount = 1 << 16;
  std::vector<uint32_t> keys;
  std::vector<int> lines(kCount);
  for (int32_t i = 0; i < kCount; ++i) keys.push_back(static_cast<uint32_t>(chain(block(i), 16)[0] >> 32));
  for (const uint32_t key : keys) ++lines[key % kCount];
  std::sort(keys.begin(), keys.end());
  CHECK(keys.end() - std::unique(keys.begin(), keys.end()) <= 8);  // half a collision is expected
  double variance = 0;
  for (const int n : lines) variance += (n - 1.0) * (n - 1.0) / kCount;
  CHECK(variance > 0.95 && variance < 1.05);  // as many lines take as many blocks as dice would have it
}

int main() {
  for (const int32_t size : {1, 7, 16}) every_token_tells(size);
  every_bit_moves();
  spreads([](int32_t i) {
    Tokens t(16);
    for (int32_t k = 0; k < 16; ++k) t[static_cast<size_t>(k)] = 16 * i + k;
    return t;
  });
  spreads([](int32_t i) {
    Tokens t(16, 5);
    t[7] = i;
    return t;
  });
  spreads([](int32_t i) {
    Tokens t(16, 0);
    t[3] = i % 256, t[12] = i / 256;
    return t;
  });
  return 0;
}
