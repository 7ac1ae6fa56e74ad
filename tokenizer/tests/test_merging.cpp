// The table of merges, filled with pairs of one line; the ways of merging against each other, for every set of
// instructions.
#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "bpe/merge_batch.hpp"
#include "check.hpp"
#include "errors.hpp"

using namespace fasttoken;

namespace {

using Pair = std::pair<uint32_t, uint32_t>;

void same_as(const MergeTable& table, const std::map<Pair, std::pair<uint32_t, uint32_t>>& expected,
             const std::vector<Pair>& asked) {
  for (auto [a, b] : asked) {
    Merge m = table.find(a, b);
    auto at = expected.find({a, b});
    if (at == expected.end())
      CHECK(m.rank == no_rank);
    else
      CHECK(m.rank == at->second.first && m.id == at->second.second);
  }
  std::vector<Merge> all = table.in_order();
  CHECK(all.size() == expected.size());
  for (size_t i = 0; i < all.size(); ++i) {
    CHECK(i == 0 || all[i - 1].rank < all[i].rank);
    auto at = expected.find({all[i].a, all[i].b});
    CHECK(at != expected.end() && at->second == std::pair(all[i].rank, all[i].id));
  }
}

// Pairs that all belong into one line, and from there to the same others: the table grows until they have room, or
// the file is refused.
void pairs_in_one_line() {
  constexpr uint32_t ids = 1u << 16;
  MergeTable empty;
  empty.reserve(100, ids);
  const uint32_t bits = empty.probe().line_bits;
  for (bool hostile : {false, true}) {
    // Eight bits say where to go on; hostile: alike in more than the table would ever grow by.
    const uint32_t alike = hostile ? 12 : 8;
    std::vector<Pair> pairs;
    for (uint32_t a = 300; a < ids && pairs.size() < 100; ++a) {
      for (uint32_t b = 300; b < 600; ++b) {
        auto at = empty.probe().place(a, b);
        if (at.line == empty.probe().lines && at.key >> (64 - alike) == 0) pairs.push_back({a, b});
      }
    }
    CHECK(pairs.size() >= 100);
    MergeTable table;
    table.reserve(100, ids);
    std::map<Pair, std::pair<uint32_t, uint32_t>> expected;
    bool refused = false;
    try {
      for (uint32_t rank = 0; rank < 100; ++rank) {
        table.add(pairs[rank].first, pairs[rank].second, rank, rank);
        expected[pairs[rank]] = {rank, rank};
      }
    } catch (const Unsupported&) {
      refused = true;
    }
    CHECK(refused == hostile);
    if (refused) continue;
    CHECK(table.probe().line_bits > bits);
    same_as(table, expected, pairs);
  }
}

struct Made {
  MergeTable merges;
  uint32_t ranks = 0;
  std::vector<std::vector<uint32_t>> texts;  // of each token, its letters
};

// Merges of any two tokens. The ids of letters begin at `first`: up to 256 they are in the table of bytes.
void make(std::mt19937& random, uint32_t letters, uint32_t first, uint32_t count, Made& made) {
  made.merges.reserve(count + 1, first + letters + count);
  std::map<std::vector<uint32_t>, uint32_t> ids;
  for (uint32_t i = 0; i < letters; ++i) ids[made.texts.emplace_back(1, i)] = i;
  for (; made.ranks < count; ++made.ranks) {
    size_t a = random() % made.texts.size(), b = random() % made.texts.size();
    std::vector<uint32_t> joined = made.texts[a];
    joined.insert(joined.end(), made.texts[b].begin(), made.texts[b].end());
    auto [at, is_new] = ids.emplace(joined, static_cast<uint32_t>(made.texts.size()));
    if (is_new) made.texts.push_back(joined);
    made.merges.add(first + static_cast<uint32_t>(a), first + static_cast<uint32_t>(b), made.ranks,
                    first + at->second);
  }
}

// All ways of merging give the same, with windows of any size.
void all_ways_of_merging() {
  std::mt19937 random(11);
  MergeScratch scratch;
  for (int round = 0; round < 400; ++round) {
    const uint32_t letters = 1 + random() % 4;
    Made made;
    make(random, letters, 0, random() % 40, made);
    const Merger merger(made.merges);
    size_t n = 1 + random() % (round % 4 ? 64 : 2000), period = 1 + random() % (round % 3 ? n : 5);
    ScratchVector<Symbol> word;
    for (size_t i = 0; i < n; ++i)
      word.push_back(i < period || random() % 200 == 0 ? Symbol{static_cast<uint32_t>(random() % letters), 1}
                                                       : word[i - period]);
    ScratchVector<Symbol> whole = word;
    whole.resize(merger.queue(whole.data(), n, scratch));
    for (size_t narrow : {2, 3, 8, 16, 64}) {
      merger.windows(word.data(), n, scratch, narrow);
      CHECK(scratch.chain == whole);
    }
    if (n > Merger::linear_limit) continue;
    word.resize(merger.linear(word.data(), n));
    CHECK(word == whole);
  }
}

void side_by_side_as_one_by_one() {
  std::mt19937 random(17);
  MergeScratch scratch;
  MergeBatch batch;
  batch_merger(best_isa())(MergeTable(), batch);  // nothing
  size_t merged = 0, lengths[MergeBatch::longest + 1] = {};
  for (int round = 0; round < 400; ++round) {
    const uint32_t letters = 1 + random() % 5;
    const uint32_t firsts[] = {0, 250, 300, 70000, (1u << 21) - 1, 1u << 27};
    const uint32_t first = firsts[round % 6];
    Made made;
    make(random, letters, first, random() % (round % 3 ? 60 : 400), made);
    const Merger merger(made.merges);
    std::vector<ScratchVector<Symbol>> words(round % 7 ? random() % 70 : 300);
    for (auto& word : words) {
      size_t n = 1 + random() % (random() % 4 ? 20 : MergeBatch::longest);
      uint32_t only = random() % 5 ? letters : 1;  // one letter again and again: ties
      for (size_t i = 0; i < n; ++i) word.push_back({first + static_cast<uint32_t>(random()) % only, 1});
      ++lengths[n];
    }
    for (Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
      if (!has_isa(isa)) continue;
      batch.clear();
      for (auto& word : words) batch.add(word.size(), [&](size_t i) { return word[i].id; });
      batch_merger(isa)(made.merges, batch);
      CHECK(batch.size() == words.size());
      for (size_t i = 0; i < words.size(); ++i) {
        auto equal = [&](const ScratchVector<Symbol>& x) { return std::ranges::equal(x, batch[i]); };
        ScratchVector<Symbol> one = words[i];
        one.resize(merger.linear(one.data(), one.size()));
        CHECK(equal(one));
        one = words[i];
        one.resize(merger.queue(one.data(), one.size(), scratch));
        CHECK(equal(one));
        merged += words[i].size() - one.size();
      }
    }
  }
  CHECK(merged > 100000);
  CHECK(std::count(lengths + 1, lengths + MergeBatch::longest + 1, size_t{0}) == 0);
}

}  // namespace

int main() {
  pairs_in_one_line();
  all_ways_of_merging();
  side_by_side_as_one_by_one();
  return finish("merging");
}
