// ASCII of a file that changes characters one by one and cuts the text at white space and around single characters,
// as BERT's and T5's do: its words in one pass over the bytes.
//
//   exact   made of the file's own steps, each run on one character alone; none of them looks at a neighbour. Where a
//           character becomes more than one, or joins another ("\r\n" is one cluster), there is no such table
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace fasttoken {

class AsciiWords {
 public:
  enum class Kind : uint8_t { part, alone, blank, dropped, unknown };

  // prefix: what each word begins with.
  explicit AsciiWords(std::string prefix) : prefix_(std::move(prefix)) {}
  void set(unsigned char byte, Kind kind, char made = 0) { of_[byte] = {kind, made}; }

  // Calls put(word) for each word; `word` is the caller's memory. False, and nothing is called: it does not know.
  template <class F>
  bool each(std::string_view text, std::string& word, F&& put) const {
    for (char c : text)
      if (of_[static_cast<unsigned char>(c) & 127].kind == Kind::unknown) return false;
    word = prefix_;
    const auto end = [&] {
      if (word.size() == prefix_.size()) return;
      put(std::string_view(word));
      word.resize(prefix_.size());
    };
    for (char c : text) {
      const Byte byte = of_[static_cast<unsigned char>(c) & 127];
      if (byte.kind == Kind::part) {
        word += byte.made;
        continue;
      }
      if (byte.kind == Kind::dropped) continue;
      end();
      if (byte.kind == Kind::blank) continue;
      word += byte.made;
      end();
    }
    end();
    return true;
  }

 private:
  struct Byte {
    Kind kind = Kind::unknown;
    char made = 0;
  };
  std::array<Byte, 128> of_{};
  std::string prefix_;
};

}  // namespace fasttoken
