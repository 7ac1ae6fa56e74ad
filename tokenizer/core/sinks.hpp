// The tokens of each piece go into a sink.
//
//   added    an added token, at begin .. end of the text; of the caller's where there is no text
//   begin    the next piece; put() its tokens, at begin .. end of it; end()
//   shown    the text in the place of the token that is put next
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "encoded.hpp"
#include "memory/id_buffer.hpp"
#include "text/text.hpp"

namespace fasttoken {

// The ids alone.
struct IdSink {
  IdBuffer& out;
  void added(const Text*, uint32_t, uint32_t, std::string_view, uint32_t id) {
    out.push_back(static_cast<int32_t>(id));
  }
  void begin(const Text&, const Piece&) {}
  void put(uint32_t id, uint32_t, uint32_t) { out.push_back(static_cast<int32_t>(id)); }
  void shown(std::string_view) {}
  void end() {}
};

// All columns of an encoded text.
struct ColumnSink {
  Encoded& out;
  const Text* text = nullptr;
  Piece piece{};
  int32_t word = 0;

  void added(const Text* t, uint32_t begin, uint32_t end, std::string_view content, uint32_t id) {
    Align where{begin, end};
    if (t) where = {t->align(begin).begin, t->align(end - 1).end};
    out.added.push_back({static_cast<uint32_t>(out.ids.size()), std::string(content)});
    push(id, where);
    ++word;
  }
  void begin(const Text& t, const Piece& p) {
    text = &t;
    piece = p;
  }
  void put(uint32_t id, uint32_t begin, uint32_t end) {
    if (begin == end) return push(id, {piece.shift + begin, piece.shift + begin});
    if (piece.begin + end > piece.end) return push(id, {begin, end});
    push(id, {text->align(piece.begin + begin).begin, text->align(piece.begin + end - 1).end});
  }
  // The token that is put next is shown as this text.
  void shown(std::string_view as) { out.added.push_back({static_cast<uint32_t>(out.ids.size()), std::string(as)}); }
  void end() { ++word; }
  void push(uint32_t id, Align where) {
    out.ids.push_back(static_cast<int32_t>(id));
    out.offsets.push_back(where);
    out.words.push_back(word);
  }
};

}  // namespace fasttoken
