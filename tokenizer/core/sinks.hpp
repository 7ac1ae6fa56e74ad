// The tokens of each piece go into a sink.
//
//   added    an added token, at begin .. end of the text; of the caller's where there is no text
//   begin    the next piece, and how many bytes of a mark the model sees before it; put() its tokens, at begin .. end
//   of
//            what the model sees; end()
//   shown    the text in the place of the token that is put next
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "encoded.hpp"
#include "memory/scratch_vector.hpp"
#include "text/text.hpp"

namespace fasttoken {

// The ids alone.
struct IdSink {
  IdBuffer& out;
  void added(const Text*, uint32_t, uint32_t, std::string_view, uint32_t id) {
    out.push_back(static_cast<int32_t>(id));
  }
  void begin(const Text&, const Piece&, uint32_t = 0) {}
  void put(uint32_t id, uint32_t, uint32_t) { out.push_back(static_cast<int32_t>(id)); }
  void shown(std::string_view) {}
  void end() {}
};

// All columns of an encoded text.
struct ColumnSink {
  Encoded& out;
  const Text* text = nullptr;
  Piece piece{};
  uint32_t mark = 0;  // it aligns to the piece's first character, which it was put before
  int32_t word = 0;

  struct Place {
    size_t tokens, added;
    int32_t word;
  };
  Place place() const { return {out.ids.size(), out.added.size(), word}; }
  void back_to(const Place& before) {
    out.ids.resize(before.tokens);
    out.offsets.resize(before.tokens);
    out.words.resize(before.tokens);
    out.added.resize(before.added);
    word = before.word;
  }

  void added(const Text* t, uint32_t begin, uint32_t end, std::string_view content, uint32_t id) {
    Align where{begin, end};
    if (t) where = {t->align(begin).begin, t->align(end - 1).end};
    out.added.push_back({static_cast<uint32_t>(out.ids.size()), std::string(content)});
    push(id, where);
    ++word;
  }
  void begin(const Text& t, const Piece& p, uint32_t mark_size = 0) {
    text = &t;
    piece = p;
    mark = mark_size;
  }
  void put(uint32_t id, uint32_t begin, uint32_t end) {
    if (mark) {
      begin -= std::min(begin, mark);
      end = std::max(end, mark + 1) - mark;
    }
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
