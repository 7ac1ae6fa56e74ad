#include "tables_file.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#ifdef _WIN32
#include <io.h>
#else
#include <unistd.h>
#endif

namespace fasttoken {

namespace {

constexpr std::array<char, 16> magic = {'f', 'a', 's', 't', 't', 'o', 'k', 'e',
                                        'n', ' ', 't', 'a', 'b', 'l', 'e', '1'};

struct Header {
  std::array<char, 16> magic;
  Digest::Value digest;
  uint64_t size;  // of what follows
};

// How many bytes were read; fewer than asked for only at the end of the file.
size_t read_some(int file, char* to, size_t n) {
  size_t got = 0;
  while (got < n) {
#ifdef _WIN32
    int now = ::_read(file, to + got, static_cast<unsigned>(std::min<size_t>(n - got, 1u << 30)));
#else
    ssize_t now = ::read(file, to + got, n - got);
#endif
    if (now < 0 && errno == EINTR) continue;
    if (now < 0) throw TablesError(std::strerror(errno));
    if (now == 0) break;
    got += static_cast<size_t>(now);
  }
  return got;
}

}  // namespace

void Digest::block(const char* p) {
  uint64_t w[8];
  std::memcpy(w, p, sizeof w);
  for (size_t i = 0; i < 4; ++i)
    lanes_[i] = std::rotl(lanes_[i], 23) + fold(w[2 * i] ^ key_[4 + i], w[2 * i + 1] ^ lanes_[i]);
}

void Digest::add(const char* p, size_t n) {
  bytes_ += n;
  for (; n >= 64; p += 64, n -= 64) block(p);
  char last[64] = {};
  std::memcpy(last, p, n);
  last[63] = static_cast<char>(n + 1);  // what has 64 bytes is no last block
  block(last);
}

Digest::Value Digest::value() const {
  uint64_t a = fold(lanes_[0] ^ key_[4], lanes_[1] ^ key_[5]) ^ bytes_;
  uint64_t b = fold(lanes_[2] ^ key_[6], lanes_[3] ^ key_[7]) + bytes_;
  return {fold(a ^ key_[0], b ^ key_[1]) + lanes_[0] + lanes_[2],
          fold(a ^ key_[2], b ^ key_[3]) + lanes_[1] + lanes_[3]};
}

Digest::Value digest_of(std::string_view content, const Digest::Key& key) {
  Digest digest(key);
  for (size_t at = 0; at < content.size(); at += Digest::chunk)
    digest.add(content.data() + at, std::min(Digest::chunk, content.size() - at));
  return digest.value();
}

Digest::Value digest_of(int file, const Digest::Key& key) {
  Digest digest(key);
  std::vector<char> buffer(Digest::chunk);
  for (;;) {
    size_t n = read_some(file, buffer.data(), buffer.size());
    if (n) digest.add(buffer.data(), n);
    if (n < buffer.size()) return digest.value();
  }
}

TableWriter::TableWriter(const Digest::Key& key, const Digest::Value& source)
    : out_(sizeof(Header), '\0'), digest_(key) {
  value(source);
}

void TableWriter::bytes(const char* p, size_t n) {
  out_.append(p, n);
  for (size_t at = 0; at < n; at += Digest::chunk) digest_.add(p + at, std::min(Digest::chunk, n - at));
}

std::string TableWriter::finish() {
  Header header{magic, digest_.value(), out_.size() - sizeof(Header)};
  std::memcpy(out_.data(), &header, sizeof header);
  return std::move(out_);
}

TableReader::TableReader(int file, uint64_t size, const Digest::Key& key, const Digest::Value& source)
    : file_(file), left_(0), digest_(key) {
  Header header;
  if (size < sizeof header || read_some(file, reinterpret_cast<char*>(&header), sizeof header) != sizeof header)
    throw TablesError("shorter than a header");
  if (header.magic != magic) throw TablesError("another kind of file");
  if (header.size != size - sizeof header) throw TablesError("cut short, or longer than it says");
  expected_ = header.digest;
  left_ = header.size;
  Digest::Value of;
  value(of);
  if (of != source) throw TablesError("of another tokenizer.json");
}

void TableReader::bytes(char* to, size_t n) {
  if (n > left_) throw TablesError("a value goes past the end");
  left_ -= n;
  for (size_t at = 0; at < n; at += Digest::chunk) {
    size_t now = std::min(Digest::chunk, n - at);
    if (read_some(file_, to + at, now) != now) throw TablesError("cut short while it was read");
    digest_.add(to + at, now);
  }
}

void TableReader::finish() {
  if (left_ != 0) throw TablesError("something follows the tables");
  if (digest_.value() != expected_) throw TablesError("not what was written");
}

}  // namespace fasttoken
