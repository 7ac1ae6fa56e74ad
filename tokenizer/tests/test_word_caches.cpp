// The caches of words and clauses: rows come back as they were put, also where threads share a cache, and two words
// of one mark are told apart.
#include <algorithm>
#include <atomic>
#include <thread>

#include "words.hpp"

namespace {

void hashes_of_texts_depend_on_each_byte() {
  std::mt19937 random(3);
  for (size_t n = 1; n <= 200; ++n) {
    // On the heap without room to spare, so that a sanitizer sees reads beside it.
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

// Every number of ids and every length of a word comes back as it was put.
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

// The words that came in last are kept, nearly as many as there are lines, and none that came in before.
void clauses_are_kept_in_order() {
  constexpr size_t lines = 1024;
  ClauseCache cache;
  cache.reserve(lines * 256);
  auto kept = [&](size_t i) {
    const std::string w = "clause " + std::to_string(i);
    int32_t ids[ClauseCache::most_ids];
    const size_t n = cache.find(ClauseCache::Key::of(w.data(), w.size()), hash_of_text(w.data(), w.size()), ids);
    CHECK(n == 0 || (n == 2 && ids[0] == static_cast<int32_t>(i) && ids[1] == 7));
    return n != 0;
  };
  for (size_t i = 0; i < 10 * lines; ++i) {
    const std::string w = "clause " + std::to_string(i);
    const int32_t row[] = {static_cast<int32_t>(i), 7};
    CHECK(!kept(i));
    cache.put(ClauseCache::Key::of(w.data(), w.size()), hash_of_text(w.data(), w.size()), row, 2);
    CHECK(kept(i));
  }
  size_t last = 0, before = 0;
  for (size_t i = 9 * lines; i < 10 * lines; ++i) last += kept(i);
  for (size_t i = 0; i < 9 * lines; ++i) before += kept(i);
  CHECK(last > lines * 8 / 10 && before == 0);  // more than two of one row displace each other
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
  hashes_of_texts_depend_on_each_byte();
  words_are_met_again();
  clauses_of_one_mark_are_their_own();
  cache_in_threads<WordCache>(1024);
  cache_in_threads<ClauseCache>(4096);
  cache_keeps_rows<WordCache>();
  cache_keeps_rows<ClauseCache>();
  cache_grows_while_words_come_in<WordCache>();
  clauses_are_kept_in_order();
  threads_share_a_tokenizer();
  return finish("word caches");
}
