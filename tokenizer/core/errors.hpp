// The errors of loading, and the limits of every text and call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace fasttoken {

// The file is wrong: path of the JSON value, message.
struct FileError : std::runtime_error {
  FileError(std::string where, std::string what)
      : std::runtime_error(where + ": " + what), path(std::move(where)), message(std::move(what)) {}
  std::string path, message;
};

// The file may be right, this core does not do it: feature, path.
struct Unsupported : std::runtime_error {
  Unsupported(std::string what, std::string where)
      : std::runtime_error(where + ": " + what), feature(std::move(what)), path(std::move(where)) {}
  std::string feature, path;
};

// The text is not valid UTF-8 (position given) or longer than max_text.
struct TextError : std::runtime_error {
  TextError(const std::string& what, size_t where) : std::runtime_error(what), position(where) {}
  size_t position;
};

// Offsets and positions are 32-bit; a normalizer may make a text longer, hence the head room.
inline constexpr size_t max_text = size_t{1} << 29;

[[noreturn]] inline void decoded_too_long() {
  throw TextError("the ids decode to more than " + std::to_string(max_text) + " bytes; decode fewer at a time",
                  max_text);
}

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
