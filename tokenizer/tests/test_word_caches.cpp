// The caches of words and clauses: rows come back as they were put, also in threads, and words are told apart.
#include <algorithm>
#include <atomic>
#include <thread>

#include "words.hpp"

namespace {

// Clauses that are taken for one another, so that some are looked for at their first time.
void clauses_of_one_mark_are_their_own() {
  Tokenizer t(file(qwen, 3));
  std::map<uint64_t, std::string> seen;
  Scratch s;
  size_t pairs = 0, wrong = 0;
  for (uint32_t i = 0; i < 160'000; ++i) {
    std::string clause;
    for (uint32_t k = 0, left = i; k < 9; ++k, left /= 5) utf8_append(clause, 0x4E00 + left % 5 * 7);
    const uint64_t hash = hash_of_text(clause.data(), clause.size());
    auto [at, fresh] = seen.try_emplace((hash >> 50) << 16 | (hash >> 8 & 0xFFFF) | 1, clause);
    if (fresh) continue;
    ++pairs;
    wrong += !(same(t, s, at->second) && same(t, s, clause) && same(t, s, at->second));
  }
  CHECK(wrong == 0 && pairs > 5);
}

void reserve(WordCache& cache, size_t bytes) { cache.reserve(bytes, bytes); }
void reserve(ClauseCache& cache, size_t bytes) { cache.reserve(bytes); }

// One set of the cache for many words, and every answer is none or the right one, with any interleaving of threads.
template <class Cache>
void cache_in_threads(size_t bytes) {
  Cache cache;
  reserve(cache, bytes);
  CHECK(cache.bytes() >= bytes && cache.bytes() <= bytes + bytes / 32);  // with the rows of an index
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

// Every number of ids and every length of a word comes back as it was put, and to no other word.
template <class Cache>
void cache_keeps_rows() {
  Cache cache;
  reserve(cache, size_t{1} << 20);
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
      w[(length * n - 1) / Cache::most_ids] ^= 64;  // another word, were it of the same hash
      equal = equal && cache.find(Cache::Key::of(w.data(), w.size()), key.hash(), ids) == 0;
    }
  CHECK(equal);
}

// Of a small part at first, then of twice as much again and again, and never of more than there is; with
// any interleaving of threads, a found value is the one that was put.
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
          Encoded columns;
          t.encode_ids(texts[i], true, Tokenizer::scratch(), ids);
          t.encode(texts[i], true, Tokenizer::scratch(), columns);
          equal += ids == expected[i] && columns.ids == ids;
        }
    });
  for (auto& thread : pool) thread.join();
  CHECK(equal == 6 * 3 * 40);
}

}  // namespace

int main() {
  clauses_of_one_mark_are_their_own();
  cache_in_threads<WordCache>(1024);
  cache_in_threads<ClauseCache>(4096);
  cache_keeps_rows<WordCache>();
  cache_keeps_rows<ClauseCache>();
  cache_grows_while_words_come_in<WordCache>();
  threads_share_a_tokenizer();
  return finish("word caches");
}
