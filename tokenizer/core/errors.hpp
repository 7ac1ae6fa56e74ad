// What loading can end in, and the one limit every text obeys.
//
//   FileError     the file is wrong: path of the JSON value, message
//   Unsupported   the file may be right, this core does not do it: feature, path, regex or component
//   TextError     the text is not valid UTF-8 (position given) or longer than max_text
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace fasttoken {

struct FileError : std::runtime_error {
  FileError(std::string where, std::string what)
      : std::runtime_error(where + ": " + what), path(std::move(where)), message(std::move(what)) {}
  std::string path, message;
};

struct Unsupported : std::runtime_error {
  Unsupported(std::string what, std::string where, bool is_regex = false)
      : std::runtime_error(where + ": " + what), feature(std::move(what)), path(std::move(where)), regex(is_regex) {}
  std::string feature, path;
  bool regex;
};

struct TextError : std::runtime_error {
  TextError(const std::string& what, size_t where) : std::runtime_error(what), position(where) {}
  size_t position;
};

// Offsets and positions are 32-bit; a normalizer may make a text longer, hence the head room.
inline constexpr size_t max_text = size_t{1} << 29;

// How long the normalizers, the pre-tokenizers or the decoders of a file may make a text of so many bytes: a few
// replacements in a row can make any text longer than all memory.
inline constexpr size_t most_made_of(size_t bytes) {
  constexpr size_t little = size_t{1} << 25, most = size_t{1} << 31;
  return bytes > most / 16 ? most : bytes * 16 > little ? bytes * 16 : little;
}
[[noreturn]] inline void made_too_long(size_t most) {
  throw TextError(
      "the replacements of the tokenizer file make the text longer than " + std::to_string(most) + " bytes", most);
}

}  // namespace fasttoken
