// The model of a tokenizer: its vocabulary, and the tables of its kind.
#pragma once

#include <cstdint>
#include <string_view>

#include "bpe/bpe.hpp"
#include "scratch.hpp"
#include "vocab/unigram.hpp"
#include "vocab/vocab.hpp"
#include "vocab/wordpiece.hpp"

namespace fasttoken {

enum class ModelKind : uint8_t { bpe, word_piece, unigram };

struct Model {
  ModelKind kind = ModelKind::bpe;
  Vocab vocab;
  Bpe bpe;
  WordPiece word_piece;
  Unigram unigram;

  // The tokens of a piece, put into a sink (sinks.hpp). Inlined, since a call would be made for each word.
  template <class Sink>
  [[gnu::always_inline]] void encode(std::string_view piece, Scratch& s, Sink& sink) const {
    if (kind == ModelKind::bpe) {
      uint32_t at = 0;
      bpe.encode(vocab, piece, s.bpe, [&](uint32_t id, uint32_t length) {
        sink.put(id, at, at + length);
        at += length;
      });
    } else if (kind == ModelKind::unigram) {
      encode_unigram(piece, s, sink);
    } else {
      s.tokens.clear();
      word_piece.encode(vocab, piece, s.tokens);
      for (const Token& t : s.tokens) sink.put(t.id, t.begin, t.end);
    }
  }
  template <class Sink>
  void encode_unigram(std::string_view piece, Scratch& s, Sink& sink) const {
    unigram.encode(vocab, piece, s.unigram, [&](uint32_t id, uint32_t begin, uint32_t end, bool is_text) {
      if (is_text) sink.shown(piece.substr(begin, end - begin));
      sink.put(id, begin, end);
    });
  }
};

}  // namespace fasttoken
