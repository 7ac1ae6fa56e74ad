// Which characters each token stands for, from the ids alone: where nothing was rewritten or left out, the tokens'
// bytes are the text, and their lengths say where each lies.
//
//   counts_   id -> how many characters begin in its bytes; the highest bit: its first byte begins none
//   token     [begun before it, less the one it continues; begun up to its end)      in characters, as in HF
//
//   invariants   made while loading and only read afterwards. A sum that is not the length of the text (white
//                space that an added token swallowed) means that nothing is known
#pragma once

#include <cstdint>
#include <string_view>

#include "memory/table_array.hpp"
#include "text/text.hpp"
#include "text/utf8.hpp"

namespace fasttoken {

class CharSpans {
 public:
  void reserve(size_t ids) { counts_.assign(ids, 0); }
  // The bytes a token stands for in a text. False: it is too long to be kept here.
  bool add(uint32_t id, std::string_view bytes) {
    size_t count = 0;
    for (char b : bytes) count += !utf8_continues(static_cast<unsigned char>(b));
    if (count > most) return false;
    bool inside = !bytes.empty() && utf8_continues(static_cast<unsigned char>(bytes[0]));
    counts_[id] = static_cast<uint16_t>(count | (inside ? continues : 0));
    return true;
  }
  template <class Self, class Io>
  static void tables(Self& self, Io& io) {
    io.array(self.counts_);
  }
  size_t bytes() const { return counts_.bytes(); }
  bool known() const { return !counts_.empty(); }
  void forget() { counts_.clear(); }

  // n rows at out; false: an id is none of those known, or the tokens are not all of a text of so many characters.
  bool put(const int32_t* ids, size_t n, size_t characters, Align* out) const {
    size_t at = 0;
    for (size_t i = 0; i < n; ++i) {
      const uint32_t id = static_cast<uint32_t>(ids[i]);
      if (id >= counts_.size()) return false;
      uint32_t count = counts_[id];
      out[i].begin = static_cast<uint32_t>(at) - (count >> 15);
      at += count & most;
      out[i].end = static_cast<uint32_t>(at);
    }
    return at == characters;
  }

 private:
  static constexpr uint32_t continues = 1u << 15, most = continues - 1;
  TableArray<uint16_t> counts_;
};

}  // namespace fasttoken
