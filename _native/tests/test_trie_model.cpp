// Allocator and trie against a map of prefixes that does everything by scanning.
//
//   test_trie_model [operations] [seed]      default 30,000 operations; a nightly run gives a million
//
// Every operation's outcome is compared. The audit and the comparison of all nodes follow each operation while
// the run is short, and every 64th in a long one. Requests for more blocks than there are, foreign, freed and
// stale ids are part of the mix: they have to fail and change nothing.
#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "check.hpp"
#include "prelude/prefix_trie.hpp"

using namespace prelude;
using Tokens = std::vector<int32_t>;
using Key = std::vector<int32_t>;  // the salt, then the tokens of the prefix

struct Entry {
  int32_t block;
  int64_t tick;
  bool protect, promised;
  int locks;
  NodeId id;
};

class Model {
 public:
  Model(Random& random, int32_t num_blocks, int32_t size, int32_t hash_bits)
      : r(random), bs(size), pool(num_blocks, size), trie(pool, random.next(), hash_bits) {
    for (int32_t b = 0; b < num_blocks; ++b) free.insert(b);
  }

  void step() {
    const int64_t action = r.below(17);
    if (action < 1) return allocate();
    if (action < 3) return release();
    if (action < 5) return match();
    if (action < 9) return insert();
    if (action < 10) return promise();
    if (action < 12) return postprocess();
    if (action < 13) return lock();
    if (action < 15) return unlock();
    if (action < 16) return r.chance(40) ? demote() : evict();
    return use_stale();
  }

  void add_counters(TrieCounters* sum) const {
    const TrieCounters c = trie.counters();
    sum->hit += c.hit, sum->inserted += c.inserted, sum->duplicates += c.duplicates;
    sum->evicted += c.evicted, sum->evicted_hit += c.evicted_hit, sum->broken += c.broken;
    sum->collisions += c.collisions;
  }

  void compare() {
    const TrieAudit a = trie.audit();
    if (a.broken != nullptr) std::fprintf(stderr, "audit: %s (block %lld)\n", a.broken, (long long)a.at);
    CHECK(a.broken == nullptr);
    int64_t cached = 0;
    for (const auto& [k, e] : nodes) cached += !covered(k);
    CHECK(pool.num_free() == static_cast<int32_t>(free.size()));
    CHECK(pool.num_cached() == cached);
    CHECK(pool.num_used() == static_cast<int64_t>(held.size() + nodes.size()) - cached);
    CHECK(trie.num_nodes() == static_cast<int32_t>(nodes.size()));
    for (int32_t b = 0; b < pool.num_blocks(); ++b) {
      CHECK(pool.is_held(b) == held.contains(b));
    }
    std::vector<int64_t> ranks;
    for (const TrieNodeView& v : trie.dump()) {
      const auto at = std::find_if(nodes.begin(), nodes.end(), [&](const auto& n) { return n.second.id == v.id; });
      CHECK(at != nodes.end());
      const auto& [k, e] = *at;
      CHECK(v.block == e.block && v.depth * bs == static_cast<int64_t>(k.size()) - 1 && v.is_protected == e.protect);
      CHECK(v.promised == e.promised && v.locks == static_cast<uint32_t>(e.locks));
      CHECK((v.rank < 0) == covered(k) && v.salt == static_cast<uint64_t>(k[0]));
      CHECK(v.parent == (v.depth > 1 ? nodes.at(Key(k.begin(), k.end() - bs)).id : kNoNode));
      if (v.rank >= 0) ranks.push_back(v.rank);
    }
    std::sort(ranks.begin(), ranks.end());
    for (size_t i = 0; i < ranks.size(); ++i) CHECK(ranks[i] == static_cast<int64_t>(i));
    for (const auto& [k, e] : nodes) {
      CHECK(trie.index_of(e.id) == e.block);
      std::vector<int32_t> path(k.size() / static_cast<size_t>(bs) + 1);
      CHECK(trie.blocks(e.id, path.data()).ok());
      size_t depth = 0;
      for (const Key& p : path_of(k)) CHECK(path[depth++] == nodes.at(p).block);
    }
  }

 private:
  std::vector<Key> path_of(const Key& k) const {
    std::vector<Key> path;
    for (size_t n = 1 + static_cast<size_t>(bs); n <= k.size(); n += static_cast<size_t>(bs)) {
      path.emplace_back(k.begin(), k.begin() + static_cast<int64_t>(n));
    }
    return path;
  }
  Key key(const Tokens& t, int32_t salt, int64_t blocks) const {
    Key k{salt};
    k.insert(k.end(), t.begin(), t.begin() + blocks * bs);
    return k;
  }
  // A prefix sorts directly before the sequences that it begins.
  template <class F>
  void below(const Key& k, F f) const {
    for (auto it = nodes.lower_bound(k);
         it != nodes.end() && it->first.size() >= k.size() && std::equal(k.begin(), k.end(), it->first.begin());
         ++it) {
      f(it->first, it->second);
    }
  }
  bool covered(const Key& k) const {
    bool any = false;
    below(k, [&](const Key&, const Entry& e) { any |= e.locks > 0; });
    return any;
  }
  bool leaf(const Key& k) const {
    int n = 0;
    below(k, [&](const Key&, const Entry&) { ++n; });
    return n == 1;
  }
  void walk(const Tokens& t, int32_t salt, int64_t limit, int64_t* ready, int64_t* promised) const {
    *ready = *promised = 0;
    for (int64_t b = 1; b <= std::min<int64_t>(limit, static_cast<int64_t>(t.size()) / bs); ++b) {
      auto it = nodes.find(key(t, salt, b));
      if (it == nodes.end()) return;
      ++*(it->second.promised ? promised : ready);
    }
  }
  void touch(const Key& k, bool hit) {
    ++now;
    for (const Key& p : path_of(k)) {
      Entry& e = nodes.at(p);
      if (!covered(p)) e.tick = now;
      e.protect |= hit;
    }
  }
  void uncovered(const std::vector<Key>& were) {
    ++now;
    for (const Key& k : were) {
      if (!covered(k)) nodes.at(k).tick = now;
    }
  }
  std::vector<Key> covered_on(const Key& k) const {
    std::vector<Key> were;
    for (const Key& p : path_of(k)) {
      if (covered(p)) were.push_back(p);
    }
    return were;
  }
  int64_t evict_model(int64_t n) {
    for (int64_t freed = 0; freed < n; ++freed) {
      const Key* best = nullptr;
      std::pair<bool, int64_t> order{};
      for (const auto& [k, e] : nodes) {
        const std::pair<bool, int64_t> o{e.protect, e.tick};
        if ((best == nullptr || o < order) && leaf(k) && !covered(k)) best = &k, order = o;
      }
      if (best == nullptr) return freed;
      drop(Key(*best));
    }
    return n;
  }
  void drop(const Key& k) {
    const Entry& e = nodes.at(k);
    stale.push_back(e.id);
    free.insert(e.block);
    nodes.erase(k);
  }

  Tokens tokens() {
    // Few different blocks, so that prompts share prefixes and part again.
    Tokens t(static_cast<size_t>(r.below(8 * bs)));
    for (size_t i = 0; i < t.size(); ++i) t[i] = i % static_cast<size_t>(bs) == 0 && r.chance(35);
    return t;
  }
  std::vector<int32_t> some_held() {
    std::vector<int32_t> all(held.begin(), held.end());
    std::vector<int32_t> some;
    for (int64_t n = all.empty() ? 0 : r.below(5); n > 0; --n) {
      const auto at = static_cast<size_t>(r.below(static_cast<int64_t>(all.size())));
      some.push_back(all[at]);
      if (!r.chance(5)) all.erase(all.begin() + static_cast<int64_t>(at));  // seldom the same twice
      if (all.empty()) break;
    }
    return some;
  }
  bool distinct(const std::vector<int32_t>& blocks) const {
    return std::set<int32_t>(blocks.begin(), blocks.end()).size() == blocks.size();
  }

  void allocate() {
    const int64_t n = r.below(7);
    const bool evicting = r.chance(70), spare = r.chance(30);
    int64_t available = static_cast<int64_t>(free.size());
    for (const auto& [k, e] : nodes) available += evicting && !covered(k) && !(spare && e.protect);
    std::vector<int32_t> out(8, -7);
    const Result got = evicting ? trie.allocate(n, out.data(), spare) : pool.allocate(n, out.data());
    if (n > available) {
      CHECK(got.status == Status::out_of_blocks && got.detail == available && out[0] == -7);
      return;
    }
    CHECK(got.ok());
    CHECK(evict_model(std::max<int64_t>(0, n - static_cast<int64_t>(free.size()))) >= 0);
    for (int64_t i = 0; i < n; ++i) {
      CHECK(free.erase(out[static_cast<size_t>(i)]) == 1);
      held.insert(out[static_cast<size_t>(i)]);
    }
  }
  void release() {
    std::vector<int32_t> ids = some_held();
    if (r.chance(30)) ids.push_back(static_cast<int32_t>(r.below(pool.num_blocks() + 2)) - 1);
    auto left = held;
    const bool good = std::all_of(ids.begin(), ids.end(), [&](int32_t b) { return left.erase(b) == 1; });
    CHECK(pool.release(ids.data(), static_cast<int64_t>(ids.size())).ok() == good);
    if (!good) return;
    free.insert(ids.begin(), ids.end());
    held = left;
  }
  void match() {
    const Tokens t = tokens();
    const auto salt = static_cast<int32_t>(r.chance(25));
    const int64_t limit = r.chance(60) ? -1 : r.below(5);
    const bool hit = r.chance(80);
    int64_t ready, promised, all, unused;
    walk(t, salt, limit < 0 ? 99 : limit, &ready, &promised);
    walk(t, salt, 99, &all, &unused);
    const auto n = static_cast<int64_t>(t.size());
    CHECK(trie.would_hit(t.data(), n, static_cast<uint64_t>(salt)) == all);
    const TrieMatch m = trie.match(t.data(), n, static_cast<uint64_t>(salt), limit, hit);
    CHECK(m.blocks == ready && m.promised == promised);
    const Key k = key(t, salt, ready);
    CHECK(m.node == (ready ? nodes.at(k).id : kNoNode));
    if (hit && ready) touch(k, true);
  }
  void add(const Tokens& t, int32_t salt, int64_t at, const int32_t* blocks, int64_t n, bool protect, bool promised,
           NodeId last) {
    ++now;
    for (int64_t i = 0; i < n; ++i) {
      nodes[key(t, salt, ++at)] = {blocks[i], now, protect, promised, 0, kNoNode};
      held.erase(blocks[i]);
    }
    // Learn the ids on the way from the dump; the last one was returned.
    for (const TrieNodeView& v : trie.dump()) {
      for (auto& [k, e] : nodes) {
        if (e.block == v.block) e.id = v.id;
      }
    }
    CHECK(nodes.at(key(t, salt, at)).id == last);
  }
  void insert() {
    const Tokens t = tokens();
    const auto salt = static_cast<int32_t>(r.chance(25));
    if (held.size() < 3) allocate();
    std::vector<int32_t> blocks = some_held();
    int64_t ready, promised;
    walk(t, salt, 99, &ready, &promised);
    const int64_t first = r.chance(80) ? r.below(ready + 1) : r.below(3);
    const int64_t room = static_cast<int64_t>(t.size()) / bs - first;
    if (room >= 0 && room < static_cast<int64_t>(blocks.size()) && !r.chance(5)) {
      blocks.resize(static_cast<size_t>(room));
    }
    const auto count = static_cast<int64_t>(blocks.size());
    const bool protect = r.chance(20);
    TrieInsert made;
    const Result got = trie.insert(t.data(), static_cast<int64_t>(t.size()), blocks.data(), count,
                                   static_cast<uint64_t>(salt), first, protect, &made);
    if ((first + count) * bs > static_cast<int64_t>(t.size())) {
      CHECK(got.status == Status::too_few_tokens);
      return;
    }
    CHECK(got.ok() == distinct(blocks));
    if (!got.ok()) return;
    walk(t, salt, first + count, &ready, &promised);
    const int64_t there = std::max<int64_t>(0, ready - first);
    const bool extends = ready >= first && promised == 0 && there < count;
    CHECK(made.there == there && made.taken == (extends ? count - there : 0));
    if (ready && (there || (protect && extends))) touch(key(t, salt, ready), true);
    if (extends) {
      add(t, salt, ready, blocks.data() + there, count - there, protect, false, made.node);
      touch(key(t, salt, first + count), protect);
    } else {
      CHECK(made.node == (ready ? nodes.at(key(t, salt, ready)).id : kNoNode));
    }
  }
  void promise() {
    const Tokens t = tokens();
    const auto salt = static_cast<int32_t>(r.chance(25));
    if (held.size() < 3) allocate();
    const std::vector<int32_t> blocks = some_held();
    const auto count = static_cast<int64_t>(blocks.size());
    int64_t ready, promised;
    walk(t, salt, 99, &ready, &promised);
    const int64_t first = r.chance(90) ? ready : r.below(3);
    if ((first + count) * bs > static_cast<int64_t>(t.size())) return;
    walk(t, salt, first + count, &ready, &promised);
    NodeId node = kNoNode;
    const Result got = trie.promise(t.data(), static_cast<int64_t>(t.size()), blocks.data(), count,
                                    static_cast<uint64_t>(salt), first, &node);
    CHECK(got.ok() == distinct(blocks));
    if (!got.ok()) return;
    if (count == 0 || ready != first || promised != 0) {
      CHECK(node == kNoNode);
      return;
    }
    add(t, salt, first, blocks.data(), count, false, true, node);
    const Key k = key(t, salt, first + count);
    nodes.at(k).locks = 1;
    promises.push_back(k);
    CHECK(trie.lock(node).status == Status::node_promised);
    CHECK(trie.unlock(node).status == Status::node_promised);
  }
  void postprocess() {
    if (promises.empty()) return;
    const auto at = static_cast<size_t>(r.below(static_cast<int64_t>(promises.size())));
    const Key k = promises[at];
    const NodeId node = nodes.at(k).id;
    std::vector<Key> open;
    for (const Key& p : path_of(k)) {
      if (nodes.at(p).promised) open.push_back(p);
    }
    if (r.chance(40)) {
      int64_t freed = -1;
      CHECK(trie.break_promise(node, &freed).ok() && freed == static_cast<int64_t>(open.size()));
      promises.erase(promises.begin() + static_cast<int64_t>(at));
      std::vector<Key> were = covered_on(k);
      were.resize(were.size() - open.size());
      for (const Key& p : open) drop(p);
      uncovered(were);
      return;
    }
    const int64_t upto = r.chance(50) ? -1 : r.below(5);
    CHECK(trie.fulfil(node, upto).ok());
    for (const Key& p : open) {
      if (upto < 0 || static_cast<int64_t>(p.size() - 1) / bs <= upto) nodes.at(p).promised = false;
    }
    if (nodes.at(k).promised) return;
    promises.erase(promises.begin() + static_cast<int64_t>(at));
    locked.push_back(k);
    CHECK(trie.fulfil(node).status == Status::not_promised);
    CHECK(trie.break_promise(node, nullptr).status == Status::not_promised);
  }
  void lock() {
    std::vector<Key> ready;
    for (const auto& [k, e] : nodes) {
      if (!e.promised) ready.push_back(k);
    }
    CHECK(trie.lock(kNoNode).ok() && trie.unlock(kNoNode).ok());
    if (ready.empty()) return;
    const Key k = ready[static_cast<size_t>(r.below(static_cast<int64_t>(ready.size())))];
    Entry& e = nodes.at(k);
    CHECK(trie.lock(e.id).ok());
    ++e.locks;
    locked.push_back(k);
  }
  void unlock() {
    for (const auto& [k, e] : nodes) {
      if (e.locks == 0 && !e.promised) CHECK(trie.unlock(e.id).status == Status::not_locked);
    }
    if (locked.empty()) return;
    const auto at = static_cast<size_t>(r.below(static_cast<int64_t>(locked.size())));
    const Key k = locked[at];
    locked.erase(locked.begin() + static_cast<int64_t>(at));
    const std::vector<Key> were = covered_on(k);
    CHECK(trie.unlock(nodes.at(k).id).ok());
    --nodes.at(k).locks;
    uncovered(were);
  }
  void evict() {
    const int64_t n = r.chance(5) ? INT32_MAX : r.below(5);
    CHECK(trie.evict(n) == evict_model(n));
  }
  void demote() {
    const int64_t n = r.below(5);
    int64_t done = 0;
    for (; done < n; ++done) {
      Entry* coldest = nullptr;
      for (auto& [k, e] : nodes) {
        int protected_below = 0;
        below(k, [&](const Key&, const Entry& other) { protected_below += other.protect; });
        if (e.protect && protected_below == 1 && !covered(k) && (coldest == nullptr || e.tick < coldest->tick))
          coldest = &e;
      }
      if (coldest == nullptr) break;
      coldest->protect = false, coldest->tick = ++now;
    }
    CHECK(trie.demote(n) == done);
  }
  void use_stale() {
    if (stale.empty()) return;
    if (stale.size() > 64) stale.erase(stale.begin(), stale.end() - 64);  // ids repeat after many generations
    const NodeId id = stale[static_cast<size_t>(r.below(static_cast<int64_t>(stale.size())))];
    int32_t out[64];
    CHECK(trie.lock(id).status == Status::stale_node && trie.unlock(id).status == Status::stale_node);
    CHECK(trie.fulfil(id).status == Status::stale_node && trie.blocks(id, out).status == Status::stale_node);
    CHECK(trie.break_promise(id, nullptr).status == Status::stale_node);
  }

  Random& r;
  int64_t bs;
  BlockAllocator pool;
  PrefixTrie trie;
  std::set<int32_t> free;
  std::set<int32_t> held;
  std::map<Key, Entry> nodes;
  std::vector<Key> locked, promises;
  std::vector<NodeId> stale;
  int64_t now = 0;
};

int main(int argc, char** argv) {
  const int64_t operations = argc > 1 ? std::atoll(argv[1]) : 30'000;
  Random random{argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1};
  TrieCounters sum;
  const int64_t every = operations > 100'000 ? 64 : 1;
  for (int64_t done = 0; done < operations;) {
    const int32_t sizes[] = {1, 2, 3, 5, 16};
    const int32_t pools[] = {1, 2, 6, 17, 40};
    const int32_t hashes[] = {0, 1, 4, 32};
    Model model(random, pools[random.below(5)], sizes[random.below(5)], hashes[random.below(4)]);
    for (int64_t i = 0; i < 400 && done < operations; ++i, ++done) {
      model.step();
      if (i % every == 0) model.compare();
    }
    model.compare();
    model.add_counters(&sum);
  }
  std::printf(
      "%lld operations agree: %llu blocks inserted, %llu hit, %llu duplicate, %llu evicted (%llu protected), "
      "%llu of broken promises, %llu collisions\n",
      static_cast<long long>(operations), (unsigned long long)sum.inserted, (unsigned long long)sum.hit,
      (unsigned long long)sum.duplicates, (unsigned long long)sum.evicted, (unsigned long long)sum.evicted_hit,
      (unsigned long long)sum.broken, (unsigned long long)sum.collisions);
  // A test of nothing is no test: each mechanism has been at work.
  CHECK(operations < 10'000 || (sum.hit > 1000 && sum.duplicates > 100 && sum.evicted > 1000 &&
                                sum.evicted_hit > 50 && sum.broken > 50 && sum.collisions > 1000));
  return 0;
}
