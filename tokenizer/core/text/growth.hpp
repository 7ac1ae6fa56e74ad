// How much longer the normalizers, pre-tokenizers and decoders of a file may make a text.
#pragma once

#include <cstddef>
#include <string>

#include "errors.hpp"

namespace fasttoken {

// Bounds on the growth of the texts of one call: a few replacements in a row make any text longer than all memory,
// and a Prepend of megabytes makes each call slow. A file has at most most_steps normalizers, as many pre-tokenizers
// and decoders, and none of them inserts more than most_content bytes at a time.
inline constexpr size_t most_steps = 1024, most_content = size_t{1} << 16;

// The bytes that all steps together may add to a text of so many bytes. NFKD and ByteLevel make 22 bytes of one.
inline constexpr size_t most_added_to(size_t bytes) {
  constexpr size_t little = size_t{1} << 16, times = 32, most = size_t{3} << 29;
  return bytes > (most - little) / times ? most : bytes * times + little;
}

// The bytes that the steps of a file may still add to the texts of one call. Its owner is the call's scratch.
class Growth {
 public:
  explicit Growth(size_t bytes = 0) { start(bytes); }
  // For a call whose text has so many bytes.
  void start(size_t bytes) {
    bytes_ = bytes;
    left_ = most_added_to(bytes);
  }
  size_t left() const { return left_; }
  // TextError where so many bytes more would be too many.
  void require(size_t added) const {
    if (added > left_) refuse();
  }
  void take(size_t added) {
    require(added);
    left_ -= added;
  }

 private:
  [[noreturn]] void refuse() const {
    throw TextError(
        "the replacements of the tokenizer file make the text longer than is allowed: they add more than " +
            std::to_string(most_added_to(bytes_)) + " bytes to " + std::to_string(bytes_),
        bytes_);
  }

  size_t bytes_ = 0, left_ = 0;
};

}  // namespace fasttoken
