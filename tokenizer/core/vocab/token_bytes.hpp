// The text of each id in a decoded text, where it does not depend on its neighbours: of a byte-level decoder the
// bytes of the token; of Replace, ByteFallback, Fuse and Strip the token's text after Replace, where "<0xHH>" is one
// byte, which is text only with those around it (raw_). The reader applies Strip to the beginning.
//
//   arena_   all bytes, one after the other, and `slack` more that copies may read
//   where_   id -> where its bytes begin; the next one's beginning is their end. Empty: nothing is kept
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "errors.hpp"
#include "memory/table_array.hpp"
#include "text/utf8.hpp"

namespace fasttoken {

class TokenBytes {
 public:
  // Ids come in order, and close() after the last; an id that is no token has no bytes.
  void add(std::string_view bytes, bool raw) {
    where_.push_back(static_cast<uint32_t>(arena_.size()));
    arena_.append(bytes.data(), bytes.size());
    raw_.push_back(raw);
  }
  void close() {
    where_.push_back(static_cast<uint32_t>(arena_.size()));
    constexpr char zeros[slack] = {};
    arena_.append(zeros, slack);
  }
  void forget() {
    arena_.clear();
    where_.clear();
    raw_.clear();
  }
  void reserve(size_t ids) {
    where_.reserve(ids + 1);
    raw_.reserve(ids);
  }

  bool known() const { return !where_.empty(); }
  std::string_view operator[](uint32_t id) const {
    if (size_t{id} + 1 >= where_.size()) return {arena_.data(), 0};
    return {arena_.data() + where_[id], where_[id + 1] - where_[id]};
  }
  // Whether the id is one byte of a character.
  bool is_raw(uint32_t id) const { return id < raw_.size() && raw_[id] != 0; }

  // The bytes of an id to out; the next ones are put behind them, and the last end at `end`.
  char* put(uint32_t id, char* out, const char* end) const {
    std::string_view b = (*this)[id];
    if (b.size() <= slack && end - out >= static_cast<std::ptrdiff_t>(slack))
      std::memcpy(out, b.data(), slack);  // more than is there, to be overwritten: no loop, no branch
    else if (!b.empty())
      std::memcpy(out, b.data(), b.size());
    return out + b.size();
  }

  // The text of the ids that are not skipped, where single bytes make characters; one U+FFFD for each byte that makes
  // none. leading: taken from the beginning of the text.
  template <class Ids, class Skip>
  std::string text(const Ids& ids, Skip&& skip, std::optional<uint32_t> leading) const {
    std::string out;
    size_t run = 0, room = 0;  // run: of single bytes at the end of out
    for (auto one : ids) room += (*this)[static_cast<uint32_t>(one)].size();
    out.reserve(std::min(room, max_text));
    auto flush = [&] {
      if (run && utf8_invalid_at(std::string_view(out).substr(out.size() - run)) != std::string_view::npos) {
        out.resize(out.size() - run);
        for (; run; --run) out += "\xEF\xBF\xBD";
      }
      run = 0;
    };
    for (auto one : ids) {
      uint32_t id = static_cast<uint32_t>(one);
      std::string_view b = (*this)[id];
      if (b.empty() || skip(id)) continue;
      bool raw = is_raw(id);
      if (run && !raw) flush();
      run += raw;
      if (out.size() + b.size() > max_text) decoded_too_long();
      out.append(b);
    }
    flush();
    if (leading && !out.empty() && utf8_at(out.data()) == *leading)
      out.erase(0, utf8_length(static_cast<unsigned char>(out[0])));
    return out;
  }

  void tables(auto& io) { io(arena_, where_, raw_); }

 private:
  static constexpr size_t slack = 16;
  TableArray<char> arena_;
  TableArray<uint32_t> where_;
  TableArray<uint8_t> raw_;
};

}  // namespace fasttoken
