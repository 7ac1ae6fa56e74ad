// The UTF-8 of characters that lie in one, two or four bytes each, as Python's strings have them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fasttoken {

inline constexpr size_t not_transcoded = SIZE_MAX;
// The bytes that `out` needs beyond `width + 1` for each character (4 for those of four): 64 are written at a time.
inline constexpr size_t transcode_margin = 64;

// How many bytes were written; not_transcoded: a surrogate is among them, or this machine has no quick way.
size_t utf8_of(const void* characters, size_t n, int width, char* out);

}  // namespace fasttoken
