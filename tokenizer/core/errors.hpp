// The errors of loading, and the one limit of every text.
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

[[noreturn]] inline void decoded_too_long() {
  throw TextError("the ids decode to more than " + std::to_string(max_text) + " bytes; decode fewer at a time",
                  max_text);
}

}  // namespace fasttoken
