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

  // Appends the text of the ids that are not skipped, where single bytes make characters; one U+FFFD for each byte
  // that makes none.
  template <class Ids, class Skip>
  void append(std::string& out, const Ids& ids, Skip&& skip) const {
    size_t room = out.size();
    for (auto one : ids) {
      const uint32_t id = static_cast<uint32_t>(one);
      room += (*this)[id].size() + 2 * size_t{is_raw(id)};  // a single byte may become three
    }
    const size_t before = out.size();
    out.resize(std::max(before, std::min(room, max_text)));
    char* to = out.data() + before;
    const char* const end = out.data() + out.size();
    size_t run = 0;  // of single bytes before `to`
    auto flush = [&] {
      if (run && utf8_invalid_at({to - run, run}) != std::string_view::npos) {
        to -= run;
        if (static_cast<size_t>(end - to) < 3 * run) decoded_too_long();
        for (; run; --run) to = std::copy_n("\xEF\xBF\xBD", 3, to);
      }
      run = 0;
    };
    for (auto one : ids) {
      const uint32_t id = static_cast<uint32_t>(one);
      const size_t size = (*this)[id].size();
      if (size == 0 || skip(id)) continue;
      const bool raw = is_raw(id);
      if (run && !raw) flush();
      run += raw;
      if (static_cast<size_t>(end - to) < size) decoded_too_long();
      to = put(id, to, end);
    }
    flush();
    out.resize(static_cast<size_t>(to - out.data()));
  }

  void tables(auto& io) { io(arena_, where_, raw_); }

 private:
  static constexpr size_t slack = 16;
  TableArray<char> arena_;
  TableArray<uint32_t> where_;
  TableArray<uint8_t> raw_;
};

}  // namespace fasttoken
