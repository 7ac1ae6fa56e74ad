// Merging the symbols of one word, lowest rank first and leftmost among equals.
//
//   up to 64 symbols   linear: one key (rank, position) a pair, and the best of them is the next merge
//   a longer run       queue: a heap of (rank, position), linked by position
//   a long word        windows, each merged alone, joined where two agree
//
//       chain    |t0|t1|t2|t3|t4|t5|          a window starts at a boundary near the end of the chain; at the
//       window            |t3|t4|u5|u6|       first token both have, the chain goes on with the window's
//
//   Why joining is exact: a boundary that no merge crosses parts a word into two that merge independently, as
//   each side merges the least of its pairs at each step, independently of the other side. So if
//   the neighbours of a chain, taken two by two, come out as they are, the first merge across a boundary has
//   no pair of tokens to happen in, and the whole comes out as the chain. Two neighbours of one window are
//   such a pair, and a token that chain and window share has its left neighbour from one, its right from the
//   other. Where nothing is shared, a wider window starts further left; the widest is the word itself.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>

#include "bpe/merges.hpp"
#include "memory/scratch_vector.hpp"

namespace fasttoken {

struct Symbol {
  uint32_t id, length;
  bool operator==(const Symbol&) const = default;
};

struct MergeScratch {
  ScratchVector<uint32_t> next, previous, rank, id;
  ScratchVector<Symbol> chain, window;
  ScratchVector<uint64_t> heap;
};

class Merger {
 public:
  static constexpr size_t linear_limit = 64;
  static constexpr uint32_t rank_limit = (1u << 25) - 1;

  explicit Merger(const MergeTable& merges) : merges_(merges) {}

  // Merges in place and returns how many symbols are left.
  size_t linear(Symbol* symbols, size_t n) const {
    if (n < 2) return n;
    const MergeTable::Probe table = merges_.probe();
    uint64_t keys[linear_limit];  // of the pair that begins there: rest << 6 | 63 - place, below 64 for none
    auto look = [&](size_t i, size_t j) { keys[i] = table.find(symbols[i].id, symbols[j].id) << 6 | (63 - i); };
    for (size_t i = 0; i + 1 < n; ++i) look(i, i + 1);
    uint64_t begins = ~uint64_t{0} >> (64 - n);  // where a token does, one bit each
    for (size_t i = n - 1; i % 4 != 0 || i == n - 1; ++i) keys[i] = 0;
    for (;;) {
      uint64_t best[4] = {keys[0], keys[1], keys[2], keys[3]};
      for (size_t i = 4; i < n; i += 4)
        for (size_t k = 0; k < 4; ++k) best[k] = std::max(best[k], keys[i + k]);
      const uint64_t most = std::max(std::max(best[0], best[1]), std::max(best[2], best[3]));
      if (most < 64) break;
      const size_t i = 63 - (most & 63);
      const uint64_t after = begins & (~uint64_t{1} << i), behind = after & (after - 1),
                     before = begins & ((uint64_t{1} << i) - 1);
      const size_t j = static_cast<size_t>(std::countr_zero(after));
      symbols[i] = {table.id(most >> 6), symbols[i].length + symbols[j].length};
      begins ^= after ^ behind;
      keys[i] = keys[j] = 0;
      if (behind) look(i, static_cast<size_t>(std::countr_zero(behind)));
      if (before) look(63 - static_cast<size_t>(std::countl_zero(before)), i);
    }
    size_t left = 0;
    for (; begins; begins &= begins - 1) symbols[left++] = symbols[std::countr_zero(begins)];
    return left;
  }

  // The same for any number of symbols.
  size_t queue(Symbol* symbols, size_t size, MergeScratch& s) const {
    uint32_t n = static_cast<uint32_t>(size);
    if (n < 2) return n;
    auto& heap = s.heap;  // rank and position of each pair that merges, and of some that are gone
    heap.clear();
    for (auto* column : {&s.next, &s.previous, &s.rank, &s.id})
      if (column->size() < n) column->resize(n);
    for (uint32_t i = 0; i < n; ++i) {
      s.next[i] = i + 1;
      s.previous[i] = i - 1;
    }
    auto look = [&](uint32_t i, uint32_t j) {
      Merge m = merges_.find(symbols[i].id, symbols[j].id);
      s.rank[i] = m.rank;
      s.id[i] = m.id;
      if (m.rank == no_rank) return;
      heap.push_back(uint64_t{m.rank} << 32 | i);
      std::push_heap(heap.begin(), heap.end(), std::greater());
    };
    for (uint32_t i = 0; i + 1 < n; ++i) look(i, i + 1);
    s.rank[n - 1] = no_rank;
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end(), std::greater());
      const uint32_t rank = static_cast<uint32_t>(heap.back() >> 32), i = static_cast<uint32_t>(heap.back());
      heap.pop_back();
      if (s.rank[i] != rank) continue;  // gone, or the pair is no longer the one that was queued
      uint32_t j = s.next[i], k = s.next[j];
      symbols[i] = {s.id[i], symbols[i].length + symbols[j].length};
      s.rank[i] = s.rank[j] = no_rank;
      s.next[i] = k;
      if (k < n) s.previous[k] = i;
      if (i > 0) look(s.previous[i], i);
      if (k < n) look(i, k);
    }
    size_t left = 0;
    for (uint32_t i = 0; i < n; i = s.next[i]) symbols[left++] = symbols[i];
    return left;
  }

  // The tokens of a word, lengths in symbols, into s.chain. narrow: the smallest window.
  void windows(const Symbol* symbols, size_t n, MergeScratch& s, size_t narrow = linear_limit) const {
    auto& chain = s.chain;
    chain.clear();
    size_t window = narrow, spent = 0, joined = 0, patience = 0;
    size_t from = 0, at = 0;  // where the window starts in the word, and which token of the chain starts there
    for (;;) {
      if (spent > 4 * n) {  // a word made to tear the chain again and again
        from = at = 0;
        window = n;
      }
      size_t end = std::min(from + window, n);
      spent += end - from;
      if (!join(chain, at, merged_window(symbols + from, end - from, s))) {
        size_t target = from > window / 2 ? from - window / 2 : 0;
        while (from > target) from -= chain[--at].length;
        window *= 2;
        if (joined > 0) patience = joined <= patience + 2 ? std::min<size_t>(2 * patience + 1, 15) : 0;
        joined = 0;
        continue;
      }
      if (end == n) return;
      // The last tokens may still change; start before them, if that is far enough on.
      size_t last = chain.size(), start = end;
      for (size_t tokens = 0; tokens < overlap + patience && last > at; ++tokens) start -= chain[--last].length;
      if (start < from + window / 2) {
        narrow = window *= 4;
        continue;
      }
      at = last;
      from = start;
      // Back to narrow windows, but later and later where that has just failed again and again.
      if (++joined > patience) window = std::max(narrow, window / 2);
    }
  }

 private:
  static constexpr size_t overlap = 2;  // tokens a window takes up again; more where joining has just failed

  const ScratchVector<Symbol>& merged_window(const Symbol* symbols, size_t n, MergeScratch& s) const {
    ScratchVector<Symbol>& out = s.window;
    out.resize(n);
    for (size_t i = 0; i < n; ++i) out[i] = {symbols[i].id, 1};
    out.resize(n <= linear_limit ? linear(out.data(), n) : queue(out.data(), n, s));
    return out;
  }

  // Goes on with the window's tokens, of which the first starts where the chain's token `at` does, from the
  // first one that both have.
  static bool join(ScratchVector<Symbol>& chain, size_t at, const ScratchVector<Symbol>& window) {
    size_t i = at, j = 0;
    if (at > 0) {
      for (size_t left = 0, right = 0; left != right || chain[i].length != window[j].length;) {
        if (left <= right)
          left += chain[i++].length;
        else
          right += window[j++].length;
        if (i == chain.size() || j == window.size()) return false;
      }
    }
    chain.resize(i);
    chain.insert(chain.end(), window.begin() + static_cast<std::ptrdiff_t>(j), window.end());
    return true;
  }

  const MergeTable& merges_;
};

}  // namespace fasttoken
