// Unigram: of all ways to cut a piece into tokens, the one whose scores sum to the most (Viterbi).
//
//   node    of each byte position of the piece: the best sum that ends there, its last token and where that begins
//
//   exact   HF's order: positions ascending, tokens by length, a later sum wins only where it is greater; sums are of
//           doubles from the start of the piece on. A character without a token of its own is unknown and counts as
//           the least score less 10. Unknown characters in a row are one token. A character that no token has
//           (foreign) is in all ways
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
#include "text/bmp_set.hpp"
#include "text/utf8.hpp"
#include "vocab/byte_trie.hpp"
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
  static constexpr size_t longest = 512, most_tokens = ByteTrie::none;

  uint32_t unknown = none;
  bool byte_fallback = false;

  // A score for each id, in their order.
  void add_score(double score) { scores_.push_back(std::bit_cast<uint64_t>(score)); }
  double score(uint32_t id) const { return std::bit_cast<double>(scores_[id]); }

  // False: its trie would be too sparse.
  bool finish_loading(const Vocab& vocab) {
    double least = std::numeric_limits<double>::infinity();
    foreign_.add_all();
    for (uint32_t c = 0; c < 0x80; ++c) foreign_.remove(c);
    ByteTrie::Entries entries;
    entries.reserve(vocab.size());
    for (uint32_t id = 0; id < vocab.end(); ++id) {
      least = std::min(least, score(id));
      if (!vocab.has(id) || vocab.text(id).empty()) continue;
      const std::string_view token = vocab.text(id);
      entries.push_back({token, id});
      for (const char *p = token.data(), *end = p + token.size(); p < end;)
        if (const uint32_t c = utf8_next(p); c < BmpSet::end) foreign_.remove(c);
    }
    unknown_score_ = std::bit_cast<uint64_t>(least - 10.0);
    fallback_ = vocab.byte_tokens();
    const ByteTrie::Built built = trie_.build(std::move(entries));
    if (built == ByteTrie::Built::too_many_nodes)
      throw FileError("model.vocab", "the tokens make a trie of more than " + std::to_string(ByteTrie::most_nodes) +
                                         " nodes, one for each beginning of a token");
    return built == ByteTrie::Built::yes;
  }

  void tables(auto& io) { io(trie_, scores_, foreign_, fallback_, unknown_score_); }

  // False: a token may have the character; ASCII and characters of four bytes are not looked at.
  bool is_foreign(uint32_t c) const { return foreign_.has(c); }

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
      const char* const known = foreign_.span(piece.data() + begin, piece.data() + n,
                                              [&] { sum += std::bit_cast<double>(unknown_score_); });
      if (known > piece.data() + begin) {
        if (unknown_from == none) unknown_from = begin;
        begin = static_cast<uint32_t>(known - piece.data());
        continue;
      }
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
  // From so many bytes on, the bytes before a place that is in all ways are settled.
  static constexpr uint32_t settled_from = 512;

  // The best way from `begin`, whose sum so far is `sum`, to the end of the piece or to a place that all ways have:
  // its tokens, last first, into s.cuts. Returns that place and its sum.
  uint32_t settle(std::string_view piece, uint32_t begin, double& sum, UnigramScratch& s) const {
    const uint32_t n = static_cast<uint32_t>(piece.size());
    const double unknown_score = std::bit_cast<double>(unknown_score_);
    auto& nodes = s.nodes;
    uint32_t ready = 0, reach = begin;  // nodes that are cleared; the furthest place where a token ends
    const auto clear_to = [&](uint32_t count) {
      if (nodes.size() < count) nodes.resize(std::max<size_t>(count, nodes.size() * 2));
      for (; ready < count; ++ready) nodes[ready] = {0.0, none, 0};
    };
    clear_to(1);
    nodes[0].score = sum;
    uint32_t at = begin;
    const auto settled = [&] {
      return at == reach && at > begin && (at - begin >= settled_from || is_foreign(utf8_at(piece.data() + at)));
    };
    while (at < n && !settled()) {
      const double so_far = nodes[at - begin].score;
      const uint32_t character = utf8_length(static_cast<unsigned char>(piece[at]));
      bool single = false;
      const auto offer = [&](uint32_t end, double token_score, uint32_t id) {
        clear_to(end - begin + 1);
        UnigramScratch::Node& node = nodes[end - begin];
        const double candidate = token_score + so_far;
        if (node.from == none || candidate > node.score) node = {candidate, at, id};
        reach = std::max(reach, end);
      };
      ByteTrie::Walk walk = trie_.walk();
      for (uint32_t i = at; i < n && walk.step(piece[i]); ++i) {
        if (walk.id == ByteTrie::none) continue;
        offer(i + 1, score(walk.id), walk.id);
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

  ByteTrie trie_;
  TableArray<uint64_t> scores_;  // bits of doubles, by id
  BmpSet foreign_;
  std::array<uint32_t, 256> fallback_{};
  uint64_t unknown_score_ = 0;
};

}  // namespace fasttoken
