// A text in the pipeline: its present bytes, and where in the caller's text each comes from.
//
//   piece      [begin, end) of the current text; shift: where its slice starts in the original, which is
//              the alignment of a character that was put before all others of the piece
//
//   invariants  all bytes of one current character have the same Align; an untouched text is a view of the caller's
//               bytes and has no table: its bytes align to the character they are part of
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "encoded.hpp"
#include "errors.hpp"
#include "memory/scratch_vector.hpp"
#include "text/utf8.hpp"

namespace fasttoken {

struct Layer {
  ScratchVector<char> text;
  ScratchVector<Align> align;
  std::string_view view() const { return {text.data(), text.size()}; }
  void clear() {
    text.clear();
    align.clear();
  }
};

struct Piece {
  uint32_t begin, end, shift;
};

class Text {
 public:
  // want_align: whether the caller asks for offsets. growth outlives the use of the text.
  void start(std::string_view bytes, uint32_t base, bool want_align, Growth& growth) {
    view_ = bytes;
    growth_ = &growth;
    base_ = base;
    touched_ = false;
    want_ = want_align;
  }

  // A part of another text, with its origins.
  void start_slice(const Text& other, const Piece& piece) {
    std::string_view part = other.view().substr(piece.begin, piece.end - piece.begin);
    start(part, piece.shift, other.want_, *other.growth_);
    if (!other.touched_) return;
    layer_.text.assign(part.begin(), part.end());
    if (want_) layer_.align.assign(other.layer_.align.begin() + piece.begin, other.layer_.align.begin() + piece.end);
    view_ = layer_.view();
    touched_ = true;
  }

  std::string_view view() const { return view_; }
  Growth& growth() { return *growth_; }
  bool wants_align() const { return want_; }

  Align align(size_t at) const {
    if (touched_) return want_ ? layer_.align[at] : Align{base_, base_};
    size_t from = at;
    while (utf8_continues(static_cast<unsigned char>(view_[from]))) --from;
    size_t to = from + utf8_length(static_cast<unsigned char>(view_[from]));
    return {base_ + static_cast<uint32_t>(from), base_ + static_cast<uint32_t>(to)};
  }
  bool touched() const { return touched_; }

  Piece whole() const { return {0, static_cast<uint32_t>(view_.size()), base_}; }
  Piece slice(size_t begin, size_t end, uint32_t otherwise) const {
    uint32_t shift = begin < view_.size() && begin < end ? shift_at(begin) : otherwise;
    return {static_cast<uint32_t>(begin), static_cast<uint32_t>(end), shift};
  }

  // Replace the current text by the layer under construction.
  void adopt() {
    std::swap(layer_, next_);
    view_ = layer_.view();
    touched_ = true;
  }
  Layer& next() {
    next_.clear();
    return next_;
  }

 private:
  uint32_t shift_at(size_t at) const {
    return touched_ ? (want_ ? layer_.align[at].begin : base_ + static_cast<uint32_t>(at))
                    : base_ + static_cast<uint32_t>(at);
  }

  std::string_view view_;
  Growth* growth_ = nullptr;
  uint32_t base_ = 0;
  bool touched_ = false, want_ = true;
  Layer layer_, next_;
};

// Writes the next layer of a text, character by character, with HF's rules for where each comes from.
class Rewrite {
 public:
  Rewrite(Text& text, size_t reserve)
      : text_(text), source_(text.view()), out_(text.next()), want_(text.wants_align()) {
    reserve = std::min(reserve, most());
    out_.text.resize(reserve);
    if (want_) out_.align.reserve(reserve);
  }

  // Begin a piece: put() sees no text before it.
  void piece(const Piece& p) {
    from_ = at_ = p.begin;
    shift_ = p.shift;
  }

  void skip() { at_ += length(); }  // remove one source character
  void put(uint32_t c, int32_t change) {
    Align where{shift_, shift_};
    if (change > 0) {
      if (want_ && at_ > from_) where = text_.align(at_ - 1);
    } else if (at_ < source_.size()) {
      if (want_) where = text_.align(at_);
      skip();
      for (; change < 0 && at_ < source_.size(); ++change) skip();
    }
    size_t n = utf8_put(room(4), c);
    written_ += n;
    if (want_) out_.align.insert(out_.align.end(), n, where);
  }
  // The result of the source up to a position: a list of (character, change).
  template <class Changes>
  void put_all(const Changes& all, size_t to) {
    put_each(all.size(), to, [&](auto&& put) {
      for (const auto& x : all) put(x.c, x.change);
    });
  }
  // The same for bytes that each become one character, which name(byte) says.
  template <class Name>
  void put_bytes(std::string_view bytes, Name&& name) {
    put_each(bytes.size(), at_ + bytes.size(), [&](auto&& put) {
      for (unsigned char b : bytes) put(name(b), utf8_continues(b) ? 1 : 0);
    });
  }
  // Copy source characters up to a position, unchanged.
  void copy_to(size_t to) {
    if (to <= at_) return;
    std::memcpy(room(to - at_), source_.data() + at_, to - at_);
    written_ += to - at_;
    if (want_) {
      for (size_t i = at_; i < to;) {
        Align where = text_.align(i);
        size_t n = utf8_length(static_cast<unsigned char>(source_[i]));
        out_.align.insert(out_.align.end(), n, where);
        i += n;
      }
    }
    at_ = to;
  }
  // The source's characters between two positions, unchanged. They align to those that at() stands at, which are
  // others where removed characters before are not accounted for.
  void take(size_t from, size_t to) {
    if (at_ == from) return copy_to(to);
    if (want_) {
      for (const char *p = source_.data() + from, *end = source_.data() + to; p < end;) put(utf8_next(p), 0);
      return;
    }
    std::memcpy(room(to - from), source_.data() + from, to - from);
    written_ += to - from;
  }
  size_t at() const { return at_; }
  size_t written() const { return written_; }
  void finish() {
    if (written_ > source_.size()) text_.growth().take(written_ - source_.size());
    out_.text.resize(written_);
    text_.adopt();
  }

 private:
  // At most so many characters, which each(put) puts in the place of the source up to `to`.
  template <class Each>
  void put_each(size_t most, size_t to, Each&& each) {
    if (want_) return each([&](uint32_t c, int32_t change) { put(c, change); });
    char *from = room(4 * most), *out = from;
    each([&](uint32_t c, int32_t) { out += utf8_put(out, c); });
    written_ += static_cast<size_t>(out - from);
    at_ = to;
  }
  // Where to write, with room for n bytes.
  char* room(size_t n) {
    if (out_.text.size() - written_ < n) {
      if (written_ + n > source_.size()) text_.growth().require(written_ + n - source_.size());
      out_.text.resize(std::max(written_ + n, 2 * out_.text.size()));
    }
    return out_.text.data() + written_;
  }
  size_t length() const { return utf8_length(static_cast<unsigned char>(source_[at_])); }
  size_t most() const { return source_.size() + text_.growth().left(); }

  Text& text_;
  std::string_view source_;
  Layer& out_;  // its text is longer than the written part, until finish()
  const bool want_;
  size_t from_ = 0, at_ = 0, written_ = 0;
  uint32_t shift_ = 0;
};

}  // namespace fasttoken
