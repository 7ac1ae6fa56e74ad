// Hashes of token blocks.
//
//   tokens    [t0 .. t15] [t16 .. t31] [t32 .. t47]
//   content       c0           c1           c2          independent of each other: they overlap in the CPU
//   chain     s → h0 ────────▶ h1 ────────▶ h2          h(i) = mix(h(i-1), c(i)): one multiplication deep
//
// h(i) names the whole prefix up to block i under the salt s. It is a multiply-and-fold, and only
// a filter: its callers compare tokens. It is seeded per trie, so that equal prompts hash differently in every
// process.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace prelude {

inline uint64_t fold_mul(uint64_t a, uint64_t b) {
  const unsigned __int128 m = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(m) ^ static_cast<uint64_t>(m >> 64);
}

inline uint64_t mix(uint64_t a, uint64_t b) { return fold_mul(a ^ 0x9E3779B97F4A7C15ull, b ^ 0xE7037ED1A0B428DBull); }

// The last token of a block of odd size, as a word.
inline uint64_t last_token(int32_t token) { return static_cast<uint32_t>(token); }

inline uint64_t load64(const int32_t* p) {
  uint64_t w;
  std::memcpy(&w, p, 8);
  return w;
}

// The content hash of one block; chain_next() multiplies it once more. The common size is unrolled: four products
// side by side, turned against each other so that quarters that change places tell.
inline uint64_t content_hash(const int32_t* tokens, int32_t size, uint64_t seed) {
  if (size == 16) {
    const uint64_t a = mix(load64(tokens) ^ seed, load64(tokens + 2));
    const uint64_t b = mix(load64(tokens + 4) ^ seed, load64(tokens + 6));
    const uint64_t c = mix(load64(tokens + 8) ^ seed, load64(tokens + 10));
    const uint64_t d = mix(load64(tokens + 12) ^ seed, load64(tokens + 14));
    return a ^ std::rotl(b, 19) ^ std::rotl(c, 31) ^ std::rotl(d, 47);
  }
  uint64_t h = seed;
  int32_t i = 0;
  for (; i + 4 <= size; i += 4) h = mix(h ^ load64(tokens + i), load64(tokens + i + 2));
  for (; i < size; ++i) h = mix(h, last_token(tokens[i]));
  return h;
}

inline uint64_t chain_start(uint64_t salt, uint64_t seed) { return mix(salt, seed); }
inline uint64_t chain_next(uint64_t chain, uint64_t content) {
  return fold_mul(std::rotl(chain, 29) ^ content, 0xA0761D6478BD642Full);
}

}  // namespace prelude
