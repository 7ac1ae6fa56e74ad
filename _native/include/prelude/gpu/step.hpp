// The arrays of a step for a device: which sizes it has (`measure`), and its arrays in the places of a shape
// (`fill`).
//
//   measure   batch ─▶ Counts and levels: exact sizes, and the values that its shape depends on. A step that is not
//             sound (an index out of bounds, tables too short) is refused: std::invalid_argument names the mistake
//   fill      Places of a shape ─▶ one area of bytes; the rows behind the step are padding
//
// Tokens are put in preorder, so that everything below a segment is one run of rows, and roots that continue the same
// blocks stand side by side:
//
//   batch     state, q1, q1.label, q2 ...            any order with parents before children
//   device    [ root | child | grandchild | child | root ... ][ decode rows ]
//
// Attention is a list of levels, each one call over all prompt rows, whose outputs are joined by log-sum-exp; or
// every row has the list of its keys in order of position:
//
//   own        ragged, causal: each segment reads itself up to the row
//   ancestor   pages of one token, over this step's K and V: the rows below a segment read it; a level for each depth
//   context    pages of the pool: all roots, and the segments below them, that continue the same blocks
//   decode     pages of the pool, one query a row
//   lists      a key is a row of this step, or -1 - slot of the pool; rows of a segment share its list
//
// Rows that read nothing in a level stand in a request without keys. The last layer asks for the rows that are read:
// where each segment has at most its last one, its queries are cut to them.
//
// Padding: tokens 0 at position 0 that are written nowhere and stand in no request; decode rows whose table is the
// scratch block and that write there; empty requests behind the others; read rows and lists of the scratch block.
//
// A Step keeps pointers into the arrays of the batch that was measured last, which the caller keeps alive, and its
// vectors from step to step: a step of known sizes allocates nothing.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "prelude/gpu/arrays.hpp"

namespace prelude::gpu {

class Step {
 public:
  // `prompts` and `decoding` may be null.
  void measure(const Prompts* prompts, const Decoding* decoding, const std::vector<Reads>& reads,
               const Limits& limits) {
    prompts_ = prompts != nullptr && prompts->tokens > 0 ? *prompts : Prompts{};
    decoding_ = decoding != nullptr && decoding->rows > 0 ? *decoding : Decoding{};
    limits_ = limits;
    counts_ = {};
    level_count_ = 0;
    const int64_t rows = prompts_.tokens + decoding_.rows;
    if (rows > std::min<int64_t>(limits.rows, 1 << 30))
      detail::refuse("the step has ", rows, " rows; there is room for ", limits.rows);
    own_.assign(1, 0);
    moved_ = false;
    if (prompts_.tokens > 0) {
      check_prompts();
      put_in_order();
      make_levels();
    }
    if (decoding_.rows > 0) measure_decoding();
    take_reads(reads);
    const bool windowed = !detail::within(prompts_.positions, prompts_.tokens, 0, limits.seen_whole) ||
                          !detail::within(decoding_.positions, decoding_.rows, 0, limits.seen_whole);
    take_cut();
    if (windowed || limits.by_keys) counts_.keys = std::max(1, listed());
    if (counts_.keys > 0) counts_.long_query = counts_.split = false;
    counts_.prompts = static_cast<int32_t>(prompts_.tokens);
    counts_.decoding = static_cast<int32_t>(decoding_.rows);
    counts_.spare = power_bucket(counts_.decoding) - counts_.decoding;
  }

  // (query, key) pairs of one head whose rows see at most `span` keys.
  int64_t attended(int64_t span) const {
    const auto pairs = [span](int64_t before, int64_t rows) {
      const int64_t whole = std::clamp<int64_t>(span - before, 0, rows);
      return whole * before + whole * (whole + 1) / 2 + (rows - whole) * span;
    };
    int64_t total = 0;
    if (prompts_.tokens > 0)
      for (size_t i = 0; i < order_.size(); ++i) total += pairs(base_[i], length(order_[i]));
    for (int64_t b = 0; b < decoding_.rows; ++b) total += pairs(decoding_.contexts[b], 1);
    return total;
  }

  const Counts& counts() const { return counts_; }
  int32_t level_count() const { return level_count_; }
  const Level& level(int32_t i) const { return levels_[static_cast<size_t>(i)]; }
  int64_t asked() const { return static_cast<int64_t>(at_.size()); }  // rows, as `measure` was given them

  // Whether the places have room for the step that was measured.
  bool fits(const Places& to) const {
    const Counts& n = counts_;
    bool room = n.prompts <= to.prompts && n.decoding <= to.decoding && n.read_prompts <= to.read_prompts &&
                n.read_decoding <= to.read_decoding && to.lengths <= to.lengths_end;
    if (n.keys > 0 || to.listed > 0) {
      const int32_t padding = n.prompts < to.prompts || n.decoding < to.decoding ? 1 : 0;  // it reads one key
      return room && n.keys > 0 && n.keys + padding <= to.listed && to.more.empty() && to.qo < 0 && to.keys >= 0 &&
             to.first >= 0 && to.count >= 0 && to.read_first >= 0 && to.read_count >= 0;
    }
    room = room && static_cast<size_t>(level_count_) == to.more.size();
    // The arrays of prompts are there for a step with prompts and for no other: fill() takes them from its segments.
    const bool prompts = n.prompts > 0;
    room = room && prompts == (to.qo >= 0) && prompts == (to.kv >= 0) && (prompts || to.last_qo < 0);
    if (prompts) room = room && n.own <= to.own && (to.last_qo < 0 || n.cut);
    if (to.decoding > 0)
      room = room && to.indptr >= 0 && to.last >= 0 && to.pages >= 0 &&
             n.pages + (to.decoding - n.decoding) <= to.entries;
    for (size_t i = 0; room && i < to.more.size(); ++i) {
      const LevelPlaces& places = to.more[i];
      room = levels_[i].requests() <= places.requests &&
             levels_[i].pages.size() <= static_cast<size_t>(places.entries) && (places.last_qo < 0 || n.cut);
    }
    return room;
  }

  void fill(const Places& to, char* area) const {
    fill_rows(to, area);
    fill_read(to, area);
    if (counts_.keys > 0) return fill_keys(to, area);
    std::memset(area + to.lengths, 0, static_cast<size_t>(to.lengths_end - to.lengths));
    if (to.qo >= 0) {
      detail::put(area, to.qo, own_, to.own + 1, own_.back());
      detail::put(area, to.kv, own_, to.own + 1, own_.back());
      if (to.last_qo >= 0) detail::put(area, to.last_qo, own_last_, to.own + 1, own_last_.back());
    }
    for (size_t i = 0; i < to.more.size(); ++i) {
      const LevelPlaces& places = to.more[i];
      const Level& level = levels_[i];
      detail::put(area, places.qo, level.qo, places.requests + 1, level.qo.back());
      detail::put(area, places.indptr, level.indptr, places.requests + 1, level.indptr.back());
      detail::put(area, places.last, level.last, places.requests, 0);
      detail::put(area, places.pages, level.pages, places.entries, 0);
      if (places.last_qo >= 0)
        detail::put(area, places.last_qo, level.last_qo, places.requests + 1, level.last_qo.back());
    }
    if (to.decoding > 0) fill_decoding(to, area);
  }

  // Of `count` rows from the `first` on, as `measure` was given them: their indices among the shape's read rows.
  void indices(const Places& to, int32_t* target, int64_t first, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      const int32_t index = at_[static_cast<size_t>(first + i)];
      target[i] = index < counts_.read_prompts ? index : index + (to.read_prompts - counts_.read_prompts);
    }
  }

 private:
  int32_t slot_limit() const {
    return static_cast<int32_t>(std::min<int64_t>(int64_t{limits_.blocks} * limits_.block_size, INT32_MAX));
  }

  void check_prompts() const {
    using detail::check, detail::refuse;
    const Prompts& p = prompts_;
    if (p.segments < 1 || p.starts[0] != 0 || p.starts[p.segments] != p.tokens || p.context_indptr[0] != 0 ||
        p.context_indptr[p.segments] > p.held)
      refuse("the edges of ", p.segments, " segments are not those of ", p.tokens, " tokens and ", p.held, " blocks");
    check("token id", p.ids, p.tokens, 0, limits_.vocab);
    check("position", p.positions, p.tokens, 0, limits_.positions);
    if (p.slots != nullptr) check("slot", p.slots, p.tokens, -1, slot_limit());
    for (int64_t s = 0; s < p.segments; ++s) {
      const int32_t tokens = p.contexts[s], held = p.context_indptr[s + 1] - p.context_indptr[s];
      if (p.starts[s + 1] < p.starts[s] || held < 0 || p.context_indptr[s + 1] > p.held)
        refuse("segment ", s, " ends before it begins, or its blocks end behind all");
      if (p.parents[s] >= s) refuse("segment ", s, " has parent ", p.parents[s], "; parents come before children");
      if (tokens < 0 || tokens > (1 << 30)) refuse("segment ", s, " has a context of ", tokens, " tokens");
      if (p.parents[s] >= 0 && tokens > 0) refuse("segment ", s, " has a parent and a context of its own");
      if (tokens > 0) check_blocks(tokens, p.context_blocks + p.context_indptr[s], held);
    }
  }

  void check_blocks(int32_t tokens, const int32_t* blocks, int32_t held) const {
    const int32_t need = (tokens - 1) / limits_.block_size + 1;
    if (need > held) detail::refuse(tokens, " tokens do not lie in ", held, " blocks of ", limits_.block_size);
    detail::check("block", blocks, need, 0, limits_.blocks);
  }

  // Entries of the lists of all rows.
  int32_t listed() const {
    int64_t total = 0;
    if (prompts_.tokens > 0)
      for (size_t i = 0; i < order_.size(); ++i) total += base_[i] + length(order_[i]);
    for (int64_t b = 0; b < decoding_.rows; ++b) total += decoding_.contexts[b] + 1;
    if (total > (1 << 30)) detail::refuse("the rows of the step read ", total, " keys");
    return static_cast<int32_t>(total);
  }

  int32_t length(int32_t s) const { return prompts_.starts[s + 1] - prompts_.starts[s]; }

  bool same_context(int32_t a, int32_t b) const {
    const Prompts& p = prompts_;
    const int32_t count = p.context_indptr[a + 1] - p.context_indptr[a];
    return p.contexts[a] == p.contexts[b] && count == p.context_indptr[b + 1] - p.context_indptr[b] &&
           (count == 0 || std::memcmp(p.context_blocks + p.context_indptr[a], p.context_blocks + p.context_indptr[b],
                                      static_cast<size_t>(count) * sizeof(int32_t)) == 0);
  }

  uint64_t context_hash(int32_t s) const {
    const Prompts& p = prompts_;
    uint64_t hash = 0x9E3779B97F4A7C15u ^ static_cast<uint64_t>(p.contexts[s]);
    for (int32_t i = p.context_indptr[s]; i < p.context_indptr[s + 1]; ++i)
      hash = (hash ^ static_cast<uint32_t>(p.context_blocks[i])) * 0x100000001B3u;
    return hash ^ (hash >> 29);
  }

  // Preorder: children behind their parent, roots of one context side by side where the first of them stands.
  void put_in_order() {
    const Prompts& p = prompts_;
    const auto count = static_cast<size_t>(p.segments);
    bool moves = false;
    int64_t contexts = 0;
    for (int64_t s = 0; s < p.segments; ++s) {
      moves |= p.parents[s] >= 0;
      contexts += p.contexts[s] > 0;
    }
    order_.resize(count);
    index_.resize(count);
    moved_ = moves || contexts > 1;
    if (moved_)
      walk();
    else
      for (size_t i = 0; i < count; ++i) order_[i] = static_cast<int32_t>(i);
    for (size_t i = 0; i < count; ++i) index_[static_cast<size_t>(order_[i])] = static_cast<int32_t>(i);
    start_.resize(count);
    base_.resize(count);
    depth_.resize(count);
    below_.resize(count);
    deepest_ = 0;
    int32_t at = 0;
    for (size_t i = 0; i < count; ++i) {
      const int32_t s = order_[i], parent = p.parents[s], own = length(s);
      const size_t above = parent >= 0 ? static_cast<size_t>(index_[static_cast<size_t>(parent)]) : 0;
      depth_[i] = parent >= 0 ? depth_[above] + 1 : 0;
      base_[i] = parent >= 0 ? base_[above] + length(parent) : p.contexts[s];
      deepest_ = std::max(deepest_, depth_[i]);
      start_[i] = at;
      at += own;
      below_[i] = at;
      counts_.attended += int64_t{own} * base_[i] + int64_t{own} * (own + 1) / 2;
      counts_.longest = std::max(counts_.longest, own);
      if (own > 0) own_.push_back(at);
    }
    for (size_t i = count; i-- > 0;) {
      const int32_t parent = p.parents[order_[i]];
      if (parent < 0) continue;
      int32_t& end = below_[static_cast<size_t>(index_[static_cast<size_t>(parent)])];
      end = std::max(end, below_[i]);
    }
    counts_.own = static_cast<int32_t>(own_.size()) - 1;
    counts_.long_query = counts_.longest >= limits_.long_query;
  }

  void walk() {
    const Prompts& p = prompts_;
    const auto count = static_cast<size_t>(p.segments);
    first_.assign(count, -1);  // the last child of a segment; a root's next root of the same context
    next_.assign(count, -1);   // the child before it
    tail_.assign(count, -1);   // of the first root of a context: the last one
    roots_.clear();
    table_.assign(std::bit_ceil(count * 2), -1);
    for (size_t s = 0; s < count; ++s) {
      const int32_t own = static_cast<int32_t>(s), parent = p.parents[s];
      if (parent >= 0) {
        next_[s] = first_[static_cast<size_t>(parent)];
        first_[static_cast<size_t>(parent)] = own;
        continue;
      }
      if (p.contexts[s] > 0) {
        size_t slot = context_hash(own) & (table_.size() - 1);
        while (table_[slot] >= 0 && !same_context(table_[slot], own)) slot = (slot + 1) & (table_.size() - 1);
        if (table_[slot] >= 0) {
          int32_t& tail = tail_[static_cast<size_t>(table_[slot])];
          next_[static_cast<size_t>(tail)] = own;
          tail = own;
          continue;
        }
        table_[slot] = own;
      }
      tail_[s] = own;
      roots_.push_back(own);
    }
    size_t at = 0;
    for (const int32_t head : roots_)
      for (int32_t root = head; root >= 0; root = next_[static_cast<size_t>(root)]) {
        stack_.assign(1, root);
        while (!stack_.empty()) {
          const int32_t s = stack_.back();
          stack_.pop_back();
          order_[at++] = s;
          for (int32_t child = first_[static_cast<size_t>(s)]; child >= 0; child = next_[static_cast<size_t>(child)])
            stack_.push_back(child);
        }
      }
  }

  Level& next_level(int32_t page_size, bool pool) {
    if (static_cast<size_t>(level_count_) == levels_.size()) levels_.emplace_back();
    Level& level = levels_[static_cast<size_t>(level_count_++)];
    level.clear(page_size, pool);
    return level;
  }

  // A level for each depth whose segments have rows below them, and one for cached prefixes.
  void make_levels() {
    const Prompts& p = prompts_;
    const auto count = static_cast<size_t>(p.segments);
    const auto rows = static_cast<int32_t>(p.tokens);
    for (int32_t depth = 0; depth < deepest_; ++depth) {
      Level* level = nullptr;
      for (size_t i = 0; i < count; ++i) {
        const int32_t own = length(order_[i]), end = start_[i] + own;
        if (depth_[i] != depth || own == 0 || below_[i] <= end) continue;
        if (level == nullptr) level = &next_level(1, false);
        level->skip_to(end);
        for (int32_t row = start_[i]; row < end; ++row) level->pages.push_back(row);
        level->request(below_[i], 1);
      }
      if (level != nullptr) level->skip_to(rows);
    }
    Level* level = nullptr;
    int32_t open = -1, first = 0, end = 0;  // a run of rows of one context
    const auto close = [&]() {
      if (open < 0 || end == first) return;
      const int32_t tokens = p.contexts[open], need = (tokens - 1) / limits_.block_size + 1;
      const int32_t* blocks = p.context_blocks + p.context_indptr[open];
      if (level == nullptr) level = &next_level(limits_.block_size, true);
      level->skip_to(first);
      level->pages.insert(level->pages.end(), blocks, blocks + need);
      level->request(end, (tokens - 1) % limits_.block_size + 1);
    };
    for (size_t i = 0; i < count; ++i) {
      const int32_t s = order_[i];
      if (p.contexts[s] <= 0) continue;
      if (open >= 0 && end == start_[i] && same_context(open, s)) {
        end = below_[i];
        open = s;
        continue;
      }
      close();
      open = s;
      first = start_[i];
      end = below_[i];
    }
    close();
    if (level != nullptr) level->skip_to(rows);
    for (int32_t i = 0; i < level_count_; ++i) {
      Level& made = levels_[static_cast<size_t>(i)];
      made.split = made.tiles(rows, limits_.group) < limits_.whole_tiles && made.most_keys() > limits_.split_keys;
    }
  }

  void measure_decoding() {
    using detail::check;
    const Decoding& d = decoding_;
    if (d.indptr[0] != 0 || d.indptr[d.rows] > d.held)
      detail::refuse("the edges of ", d.rows, " tables are not those of ", d.held, " blocks");
    check("token id", d.ids, d.rows, -limits_.pending, limits_.vocab);
    check("position", d.positions, d.rows, 0, limits_.positions);
    check("slot", d.slots, d.rows, -1, slot_limit());
    int32_t longest = 0;
    int64_t pages = 0;
    for (int64_t b = 0; b < d.rows; ++b) {
      if (d.contexts[b] < 0 || d.contexts[b] == INT32_MAX || d.indptr[b + 1] < d.indptr[b] ||
          d.indptr[b + 1] > d.held)
        detail::refuse("decode row ", b, " has ", d.contexts[b], " tokens in ", d.indptr[b + 1] - d.indptr[b],
                       " blocks");
      const int32_t keys = d.contexts[b] + 1, need = (keys - 1) / limits_.block_size + 1;
      check_blocks(keys, d.blocks + d.indptr[b], d.indptr[b + 1] - d.indptr[b]);
      longest = std::max(longest, keys);
      pages += need;
      counts_.attended += keys;
    }
    if (pages > (1 << 30)) detail::refuse("the decode rows have ", pages, " blocks");
    counts_.pages = static_cast<int32_t>(pages);
    counts_.split = longest > limits_.split_keys && d.rows < limits_.whole_rows;
  }

  // Where batch token `t` stands.
  int32_t place(int32_t t) const {
    if (!moved_) return t;
    const int32_t* starts = prompts_.starts;
    const auto s = std::upper_bound(starts, starts + prompts_.segments + 1, t) - starts - 1;
    return start_[static_cast<size_t>(index_[static_cast<size_t>(s)])] + t - starts[s];
  }

  void take_reads(const std::vector<Reads>& reads) {
    at_.clear();
    bool ascending = true;
    for (const Reads& part : reads) {
      const int64_t limit = part.of_decoding ? decoding_.rows : prompts_.tokens;
      detail::check("row", part.rows, part.count, 0, static_cast<int32_t>(limit));
      for (int64_t i = 0; i < part.count; ++i) {
        const int32_t row = part.rows[i];
        const int32_t there = part.of_decoding ? row + static_cast<int32_t>(prompts_.tokens) : place(row);
        ascending &= at_.empty() || there > at_.back();
        at_.push_back(there);
      }
    }
    read_ = at_;
    if (ascending) {
      for (size_t i = 0; i < at_.size(); ++i) at_[i] = static_cast<int32_t>(i);
    } else {
      std::sort(read_.begin(), read_.end());
      read_.erase(std::unique(read_.begin(), read_.end()), read_.end());
      for (int32_t& row : at_)
        row = static_cast<int32_t>(std::lower_bound(read_.begin(), read_.end(), row) - read_.begin());
    }
    const auto tokens = static_cast<int32_t>(prompts_.tokens);
    counts_.read_prompts = static_cast<int32_t>(std::lower_bound(read_.begin(), read_.end(), tokens) - read_.begin());
    counts_.read_decoding = static_cast<int32_t>(read_.size()) - counts_.read_prompts;
  }

  // Whether the last layer's queries may be the read rows only: the last one of each segment, and all decode rows.
  void take_cut() {
    const int64_t rows = prompts_.tokens + decoding_.rows;
    if (prompts_.tokens == 0 || read_.empty() || static_cast<int64_t>(read_.size()) >= rows) return;
    if (counts_.read_decoding != decoding_.rows) return;
    size_t segment = 1;
    for (int32_t i = 0; i < counts_.read_prompts; ++i) {
      while (own_[segment] <= read_[static_cast<size_t>(i)]) ++segment;
      if (own_[segment] - 1 != read_[static_cast<size_t>(i)]) return;
    }
    counts_.cut = true;
    reads_below(own_, own_last_);
    for (int32_t i = 0; i < level_count_; ++i)
      reads_below(levels_[static_cast<size_t>(i)].qo, levels_[static_cast<size_t>(i)].last_qo);
  }

  // For each edge how many of the read prompt rows stand in front of it.
  void reads_below(const std::vector<int32_t>& edges, std::vector<int32_t>& out) const {
    out.resize(edges.size());
    int32_t next = 0;
    for (size_t i = 0; i < edges.size(); ++i) {
      while (next < counts_.read_prompts && read_[static_cast<size_t>(next)] < edges[i]) ++next;
      out[i] = next;
    }
  }

  void fill_rows(const Places& to, char* area) const {
    using detail::put;
    const Prompts& p = prompts_;
    const Decoding& d = decoding_;
    const int64_t tokens = p.tokens, bytes = int64_t{to.prompts} * 4;
    if (!moved_ || tokens == 0) {
      put(area, to.ids, p.ids, tokens, to.prompts, 0);
      put(area, to.positions, p.positions, tokens, to.prompts, 0);
      put(area, to.slots, p.slots, p.slots == nullptr ? 0 : tokens, to.prompts, -1);
    } else {
      for (size_t i = 0; i < order_.size(); ++i) {
        const int32_t s = order_[i];
        const int64_t from = p.starts[s], count = length(s), at = int64_t{start_[i]} * 4;
        put(area, to.ids + at, p.ids + from, count, count, 0);
        put(area, to.positions + at, p.positions + from, count, count, 0);
        put(area, to.slots + at, p.slots + (p.slots == nullptr ? 0 : from), p.slots == nullptr ? 0 : count, count,
            -1);
      }
      const int64_t end = tokens * 4, rest = to.prompts - tokens;
      put<int32_t>(area, to.ids + end, nullptr, 0, rest, 0);
      put<int32_t>(area, to.positions + end, nullptr, 0, rest, 0);
      put<int32_t>(area, to.slots + end, nullptr, 0, rest, -1);
    }
    put(area, to.ids + bytes, d.ids, d.rows, to.decoding, 0);
    put(area, to.positions + bytes, d.positions, d.rows, to.decoding, 0);
    put(area, to.slots + bytes, d.slots, d.rows, to.decoding, to.scratch_block * limits_.block_size);
  }

  void fill_read(const Places& to, char* area) const {
    const auto* positions = reinterpret_cast<const int32_t*>(area + to.positions);
    auto* rows = reinterpret_cast<int32_t*>(area + to.read);
    auto* read = reinterpret_cast<int32_t*>(area + to.read_positions);
    const int32_t ahead = counts_.read_prompts, moved = to.prompts - counts_.prompts;
    std::fill(rows, rows + to.read_prompts + to.read_decoding, 0);
    std::fill(read, read + to.read_prompts + to.read_decoding, 0);
    for (size_t i = 0; i < read_.size(); ++i) {
      const bool decodes = static_cast<int32_t>(i) >= ahead;
      const int32_t row = read_[i] + (decodes ? moved : 0);
      const size_t at = i + static_cast<size_t>(decodes ? to.read_prompts - ahead : 0);
      rows[at] = row;
      read[at] = positions[row];
    }
  }

  void fill_keys(const Places& to, char* area) const {
    const auto at = [area](int64_t offset) { return reinterpret_cast<int32_t*>(area + offset); };
    int32_t *keys = at(to.keys), *first = at(to.first), *count = at(to.count);
    const int32_t rows = to.prompts + to.decoding, read = to.read_prompts + to.read_decoding;
    int32_t end = 0;
    const auto pool_keys = [&](const int32_t* blocks, int32_t tokens) {
      for (int32_t t = 0; t < tokens; ++t)
        keys[end++] = -1 - (blocks[t / limits_.block_size] * limits_.block_size + t % limits_.block_size);
    };
    std::fill(first, first + rows, counts_.keys);  // padding reads one key of the scratch block
    std::fill(count, count + rows, 1);
    std::vector<int32_t> lists(order_.size());
    for (size_t i = 0; prompts_.tokens > 0 && i < order_.size(); ++i) {
      const int32_t s = order_[i], parent = prompts_.parents[s], before = base_[i];
      lists[i] = end;
      if (parent >= 0) {
        std::memcpy(keys + end, keys + lists[static_cast<size_t>(index_[static_cast<size_t>(parent)])],
                    static_cast<size_t>(before) * sizeof(int32_t));
        end += before;
      } else {
        pool_keys(prompts_.context_blocks + prompts_.context_indptr[s], before);
      }
      for (int32_t row = start_[i]; row < start_[i] + length(s); ++row) {
        keys[end++] = row;
        first[row] = lists[i];
        count[row] = end - lists[i];
      }
    }
    for (int64_t b = 0; b < decoding_.rows; ++b) {
      const int64_t row = to.prompts + b;
      first[row] = end;
      count[row] = decoding_.contexts[b] + 1;
      pool_keys(decoding_.blocks + decoding_.indptr[b], count[row]);
    }
    std::fill(keys + end, keys + to.listed, -1 - to.scratch_block * limits_.block_size);
    const int32_t* rows_read = at(to.read);
    for (int32_t k = 0; k < read; ++k) {
      at(to.read_first)[k] = first[rows_read[k]];  // of row 0 where nothing is read
      at(to.read_count)[k] = count[rows_read[k]];
    }
  }

  void fill_decoding(const Places& to, char* area) const {
    const Decoding& d = decoding_;
    auto* indptr = reinterpret_cast<int32_t*>(area + to.indptr);
    auto* last = reinterpret_cast<int32_t*>(area + to.last);
    auto* pages = reinterpret_cast<int32_t*>(area + to.pages);
    int32_t at = 0;
    indptr[0] = 0;
    for (int64_t b = 0; b < d.rows; ++b) {
      const int32_t need = d.contexts[b] / limits_.block_size + 1;
      std::memcpy(pages + at, d.blocks + d.indptr[b], static_cast<size_t>(need) * sizeof(int32_t));
      at += need;
      indptr[b + 1] = at;
      last[b] = d.contexts[b] % limits_.block_size + 1;
    }
    std::fill(pages + at, pages + to.entries, to.scratch_block);
    for (int64_t b = d.rows; b < to.decoding; ++b) {
      indptr[b + 1] = ++at;
      last[b] = 1;
    }
  }

  Prompts prompts_{};
  Decoding decoding_{};
  Limits limits_{};
  Counts counts_{};
  bool moved_ = false;  // device rows are not in the batch's order
  int32_t deepest_ = 0, level_count_ = 0;
  std::vector<int32_t> order_, index_;                 // preorder ─▶ segment, segment ─▶ preorder
  std::vector<int32_t> start_, below_, depth_, base_;  // by preorder: rows, and tokens in front of the segment
  std::vector<int32_t> own_, own_last_;                // edges of the segments that have rows
  std::vector<Level> levels_;
  std::vector<int32_t> read_, at_;  // rows that are read; of each row asked for its index among them
  std::vector<int32_t> first_, next_, tail_, roots_, stack_, table_;  // of `walk`
};

}  // namespace prelude::gpu
