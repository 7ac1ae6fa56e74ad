// The model of a tokenizer: its vocabulary, and the tables of its kind.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bpe/bpe.hpp"
#include "memory/scratch_vector.hpp"
#include "split/pretokenizers.hpp"
#include "split/words.hpp"
#include "text/text.hpp"
#include "vocab/unigram.hpp"
#include "vocab/vocab.hpp"
#include "vocab/wordpiece.hpp"

namespace fasttoken {

// What one call works with.
struct Workspace {
  Growth growth;  // of text and part
  Text text, part;
  PreTokenizer::Scratch pre;
  BpeScratch bpe;
  UnigramScratch unigram;
  std::vector<Token> tokens;
  RegexScratch& regex() { return pre.normalizer.regex; }
  std::vector<Stop> stops;
  std::string first_word, word;
  const char* readable = nullptr;  // the end of the text whose parts are encoded
  bool ascii = false;              // whether the text is known to be no more
  bool rewritten = false;          // whether ids were made of anything but the text as it is
};

// The memory of one call, kept for the thread's next one.
struct Scratch : CallBuffers, Workspace {};

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
