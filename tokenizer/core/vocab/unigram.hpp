// Unigram: of all ways to cut a piece into tokens, the one whose scores sum to the most (Viterbi).
//
//   trie    double array: the child of a node for byte b lies at base ^ b, if the label there is b
//           block 0 (256 units) is the root's own and empty; a leaf has base 0, so nothing follows it
//   node    of each byte position of the piece: the best sum that ends there, its last token and where that begins
//
//   exact   HF's order: positions ascending, tokens by length, a later sum wins only where it is greater; sums are of
//           doubles from the start of the piece on. A character without a token of its own is unknown and counts as
//           the least score less 10. Unknown characters in a row are one token
//   bounds  no token is longer than `longest` bytes, so the work is linear in the piece. The bytes before a place
//           that is in all ways are settled, and their memory used again. Without such a place a piece takes 16
//           times its bytes
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "memory/scratch_vector.hpp"
#include "memory/table_array.hpp"
#include "text/utf8.hpp"
#include "vocab/vocab.hpp"

namespace fasttoken {

struct UnigramScratch {
  struct Node {
    double score;
    uint32_t from, id;  // from: where the last token begins; Unigram::none: nothing ends here
  };
  struct Cut {
    uint32_t id, begin, end;
  };
  ScratchVector<Node> nodes;
  ScratchVector<Cut> cuts;
};

class Unigram {
 public:
  static constexpr uint32_t none = UINT32_MAX;
  static constexpr size_t longest = 512, most_tokens = (size_t{1} << 23) - 1;
  // Of the trie: its units and the lists beside them take at most 100 bytes a node. backends/bounds.py has the same
  // number.
  static constexpr size_t most_nodes = size_t{1} << 23;

  uint32_t unknown = none;
  bool byte_fallback = false;

  // A score for each id, in their order.
  void add_score(double score) { scores_.push_back(std::bit_cast<uint64_t>(score)); }
  double score(uint32_t id) const { return std::bit_cast<double>(scores_[id]); }

  // False: the vocabulary does not fit into a trie of so many units a node. FileError: it has more than `most_nodes`.
  bool finish_loading(const Vocab& vocab) {
    double least = std::numeric_limits<double>::infinity();
    for (uint32_t id = 0; id < vocab.end(); ++id) least = std::min(least, score(id));
    unknown_score_ = std::bit_cast<uint64_t>(least - 10.0);
    fallback_ = vocab.byte_tokens();
    return Builder(*this, vocab).build();
  }

  void tables(auto& io) { io(units_, scores_, fallback_, unknown_score_, deepest_); }

  // Calls put(id, begin, end, is_text) for each token of the piece, which is not empty. is_text: the token is
  // unknown, and shown as the text that it stands for.
  template <class Out>
  void encode(const Vocab& vocab, std::string_view piece, UnigramScratch& s, Out&& put) const {
    const uint32_t n = static_cast<uint32_t>(piece.size());
    uint32_t unknown_from = none;
    const auto put_unknown = [&](uint32_t end) {
      if (unknown_from == none) return;
      this->put_unknown(vocab, piece, unknown_from, end, put);
      unknown_from = none;
    };
    double sum = 0;
    for (uint32_t begin = 0; begin < n;) {
      const uint32_t end = settle(piece, begin, sum, s);
      for (size_t i = s.cuts.size(); i-- > 0;) {
        const UnigramScratch::Cut cut = s.cuts[i];
        if (cut.id == unknown) {
          if (unknown_from == none) unknown_from = cut.begin;
          continue;
        }
        put_unknown(cut.begin);
        put(cut.id, cut.begin, cut.end, false);
      }
      begin = end;
    }
    put_unknown(n);
  }

 private:
  // 8 bytes, so that much of the trie stays near: label and id of the token that ends here.
  struct Unit {
    uint32_t base;
    uint32_t packed;  // the id, and below it nine bits of label
    uint32_t label() const { return packed & 511; }
    uint32_t id() const { return packed >> 9; }
  };
  static constexpr uint32_t no_label = 256, no_id = most_tokens;
  static constexpr Unit empty{0, no_id << 9 | no_label};
  // From so many bytes on, the bytes before a place that is in all ways are settled.
  static constexpr uint32_t settled_from = 512;

  // The best way from `begin`, whose sum so far is `sum`, to the end of the piece or to a place that all ways have:
  // its tokens, last first, into s.cuts. Returns that place and its sum.
  uint32_t settle(std::string_view piece, uint32_t begin, double& sum, UnigramScratch& s) const {
    const uint32_t n = static_cast<uint32_t>(piece.size());
    const double unknown_score = std::bit_cast<double>(unknown_score_);
    const Unit* const units = units_.data();
    auto& nodes = s.nodes;
    uint32_t ready = 0, reach = begin;  // nodes that are cleared; the furthest place where a token ends
    const auto clear_to = [&](uint32_t count) {
      if (nodes.size() < count) nodes.resize(std::max<size_t>(count, nodes.size() * 2));
      for (; ready < count; ++ready) nodes[ready] = {0.0, none, 0};
    };
    clear_to(1);
    nodes[0].score = sum;
    uint32_t at = begin;
    while (at < n && !(at == reach && at - begin >= settled_from)) {
      clear_to(std::min<uint32_t>(at + std::max(deepest_, 4u), n) - begin + 1);
      const double so_far = nodes[at - begin].score;
      const uint32_t character = utf8_length(static_cast<unsigned char>(piece[at]));
      bool single = false;
      const auto offer = [&](uint32_t end, double token_score, uint32_t id) {
        UnigramScratch::Node& node = nodes[end - begin];
        const double candidate = token_score + so_far;
        if (node.from == none || candidate > node.score) node = {candidate, at, id};
        reach = std::max(reach, end);
      };
      uint32_t base = units[0].base;
      for (uint32_t i = at; i < n; ++i) {
        const uint32_t byte = static_cast<unsigned char>(piece[i]);
        const Unit unit = units[base ^ byte];
        if (unit.label() != byte) break;
        base = unit.base;
        if (unit.id() == no_id) continue;
        offer(i + 1, score(unit.id()), unit.id());
        single |= i + 1 - at == character;
      }
      if (!single) offer(at + character, unknown_score, unknown);
      at += character;
    }
    s.cuts.clear();
    for (uint32_t end = at; end > begin;) {
      const UnigramScratch::Node& node = nodes[end - begin];
      s.cuts.push_back({node.id, node.from, end});
      end = node.from;
    }
    sum = nodes[at - begin].score;
    return at;
  }

  // Unknown characters in a row: a token if the vocabulary has their text as one, else bytes if it has them all.
  template <class Out>
  void put_unknown(const Vocab& vocab, std::string_view piece, uint32_t begin, uint32_t end, Out&& put) const {
    const std::string_view text = piece.substr(begin, end - begin);
    if (auto id = vocab.find(text)) return put(*id, begin, end, false);
    const auto known = [&](char b) { return fallback_[static_cast<unsigned char>(b)] != none; };
    if (!byte_fallback || !std::all_of(text.begin(), text.end(), known)) return put(unknown, begin, end, true);
    for (unsigned char b : text) put(fallback_[b], begin, end, false);
  }

  // Places the nodes of the trie, each with all its children. Free units are in a list, in the order of the units.
  class Builder {
   public:
    Builder(Unigram& model, const Vocab& vocab) : model_(model), vocab_(vocab) {}

    bool build() {
      for (uint32_t id = 0; id < vocab_.end(); ++id)
        if (vocab_.has(id) && !vocab_.text(id).empty()) ids_.push_back(id);
      std::sort(ids_.begin(), ids_.end(), [&](uint32_t a, uint32_t b) { return vocab_.text(a) < vocab_.text(b); });
      units_.assign(block, empty);
      used_.assign(block, true);
      std::vector<Range> open{{0, 0, ids_.size(), 0}};
      while (!open.empty()) {
        const Range range = open.back();
        open.pop_back();
        if (!place(range, open)) return false;
      }
      model_.deepest_ = static_cast<uint32_t>(deepest_);
      model_.units_.swap(units_);
      return true;
    }

   private:
    static constexpr uint32_t block = 256, open_blocks = 64;
    // How many units are tried for a node with several children, and how many units there may be for each node.
    static constexpr int tries = 128;
    static constexpr size_t most_units_a_node = 4;

    struct Range {  // the tokens that pass through a unit, of which so many bytes are read
      uint32_t unit;
      size_t from, to, depth;
    };

    bool place(const Range& range, std::vector<Range>& open) {
      deepest_ = std::max(deepest_, range.depth);
      size_t from = range.from;
      if (from < range.to && vocab_.text(ids_[from]).size() == range.depth) {
        const uint32_t id = ids_[from++];
        units_[range.unit].packed = id << 9 | units_[range.unit].label();
      }
      if (from == range.to) return true;
      children_.clear();
      for (size_t i = from; i < range.to; ++i) {
        const unsigned char byte = static_cast<unsigned char>(vocab_.text(ids_[i])[range.depth]);
        if (children_.empty() || children_.back().byte != byte) children_.push_back({byte, i});
      }
      nodes_ += children_.size();
      if (nodes_ > most_nodes)
        throw FileError("model.vocab", "the tokens make a trie of more than " + std::to_string(most_nodes) +
                                           " nodes, one for each beginning of a token");
      const uint32_t base = base_of_children();
      if (units_.size() > most_units_a_node * nodes_ + 64 * block) return false;
      units_[range.unit].base = base;
      used_[base] = true;
      for (size_t i = 0; i < children_.size(); ++i) {
        const uint32_t unit = base ^ children_[i].byte;
        take(unit);
        units_[unit] = {0, no_id << 9 | children_[i].byte};
        open.push_back(
            {unit, children_[i].from, i + 1 < children_.size() ? children_[i + 1].from : range.to, range.depth + 1});
      }
      return true;
    }

    // A base that no node has yet, where the units of all children are free. A lone child takes the first free unit;
    // several are looked for from the last one on.
    uint32_t base_of_children() {
      const bool lone = children_.size() == 1;
      const uint32_t first = children_[0].byte;
      uint32_t unit = lone ? head_ : tail_;
      for (int i = 0; i < tries && unit != no_unit; ++i, unit = lone ? next_[unit - block] : last_[unit - block]) {
        const uint32_t base = unit ^ first;
        if (used_[base]) continue;
        if (std::all_of(children_.begin(), children_.end(),
                        [&](const Child& child) { return is_free(base ^ child.byte); }))
          return base;
      }
      const uint32_t begin = static_cast<uint32_t>(units_.size());
      add_block();
      return begin;
    }

    void add_block() {
      const uint32_t begin = static_cast<uint32_t>(units_.size());
      units_.resize(begin + block, empty);
      used_.resize(begin + block, false);
      taken_.resize(begin + block - block, false);
      next_.resize(begin + block - block, no_unit);
      last_.resize(begin + block - block, no_unit);
      for (uint32_t unit = begin; unit < begin + block; ++unit) {
        last_[unit - block] = tail_;
        (tail_ == no_unit ? head_ : next_[tail_ - block]) = unit;
        tail_ = unit;
      }
      // Units of old blocks stay as they are.
      if (begin < open_blocks * block) return;
      const uint32_t closed = begin - open_blocks * block + block;
      while (head_ < closed) take(head_);
    }
    bool is_free(uint32_t unit) const { return !taken_[unit - block]; }
    void take(uint32_t unit) {
      const uint32_t i = unit - block, before = last_[i], after = next_[i];
      taken_[i] = true;
      (before == no_unit ? head_ : next_[before - block]) = after;
      (after == no_unit ? tail_ : last_[after - block]) = before;
    }

    struct Child {
      unsigned char byte;
      size_t from;
    };
    static constexpr uint32_t no_unit = UINT32_MAX;
    Unigram& model_;
    const Vocab& vocab_;
    std::vector<uint32_t> ids_;
    std::vector<Unit> units_;
    std::vector<bool> used_, taken_;     // bases; units, without the first block
    std::vector<uint32_t> next_, last_;  // of the free units, without the first block
    std::vector<Child> children_;
    uint32_t head_ = no_unit, tail_ = no_unit;
    size_t nodes_ = 0, deepest_ = 0;
  };

  TableArray<Unit> units_;
  TableArray<uint64_t> scores_;  // bits of doubles, by id
  std::array<uint32_t, 256> fallback_{};
  uint64_t unknown_score_ = 0;
  uint32_t deepest_ = 0;  // bytes of the longest token
};

}  // namespace fasttoken
