#include "loading/tables_file.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>

#ifdef _WIN32
#include <io.h>
#else
#include <sys/mman.h>
#include <unistd.h>
#endif
#if defined(__linux__)
#include <sys/vfs.h>
#elif defined(__APPLE__)
#include <sys/mount.h>
#include <sys/param.h>
#endif

namespace fasttoken {

namespace {

constexpr std::array<char, 16> magic = {'f', 'a', 's', 't', 't', 'o', 'k', 'e',
                                        'n', ' ', 't', 'a', 'b', 'l', 'e', '2'};

struct Header {
  std::array<char, 16> magic;
  Digest::Value digest;
  uint64_t size;  // of the rest
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

// Whether the file lies where no other machine can remove it under a mapping, as another client of a file server
// can: a mapping whose file is gone is a signal and no error.
bool is_local([[maybe_unused]] int file) {
#if defined(__linux__)
  constexpr unsigned long ext = 0xEF53, xfs = 0x58465342, btrfs = 0x9123683E, tmpfs = 0x01021994,
                          overlay = 0x794C7630, f2fs = 0xF2F52010, zfs = 0x2FC12FC1;
  struct statfs found;
  if (::fstatfs(file, &found) != 0) return false;
  unsigned long kind = static_cast<unsigned long>(found.f_type) & 0xFFFFFFFF;
  return kind == ext || kind == xfs || kind == btrfs || kind == tmpfs || kind == overlay || kind == f2fs ||
         kind == zfs;
#elif defined(__APPLE__)
  struct statfs found;
  return ::fstatfs(file, &found) == 0 && (found.f_flags & MNT_LOCAL) != 0;
#else
  return false;
#endif
}

}  // namespace

Digest::Digest(const Key& key) : key_(key), lanes_{key[4], key[5]} {
  uint64_t last = key[6];
  for (uint64_t i = 0; i < words; ++i)
    last = drawn_[i] = fold(key[i % 8] + (i + 1) * 0x9E3779B97F4A7C15u, last ^ 0xD6E8FEB86659FD93u) + key[i / 8 % 8];
}

void Digest::block(const char* p) {
  __uint128_t sum = 0;
#pragma GCC unroll 64
  for (size_t i = 0; i < words; i += 2) {
    uint64_t w[2];
    std::memcpy(w, p + 8 * i, sizeof w);
    sum += static_cast<__uint128_t>(w[0] + drawn_[i]) * (w[1] + drawn_[i + 1]);
  }
  for (size_t i = 0; i < lanes_.size(); ++i)
    lanes_[i] = std::rotl(lanes_[i], 23) +
                fold(static_cast<uint64_t>(sum) ^ key_[i], static_cast<uint64_t>(sum >> 64) ^ lanes_[i]);
}

void Digest::add(const char* p, size_t n) {
  bytes_ += n;
  for (; n >= wide; p += wide, n -= wide) block(p);
  if (n == 0) return;
  char last[wide] = {};
  std::memcpy(last, p, n);
  block(last);
}

Digest::Value Digest::value() const {
  const uint64_t a = lanes_[0] ^ bytes_, b = lanes_[1] + bytes_;
  return {fold(a ^ key_[0], b ^ key_[1]) + a, fold(a ^ key_[2], b ^ key_[3]) + b};
}

Digest::Value digest_of(std::string_view content, const Digest::Key& key) {
  Digest digest(key);
  for (size_t at = 0; at < content.size(); at += Digest::chunk)
    digest.add(content.data() + at, std::min(Digest::chunk, content.size() - at));
  return digest.value();
}

Digest::Value digest_of(int file, const Digest::Key& key) {
  Digest digest(key);
  const auto buffer = std::make_unique_for_overwrite<char[]>(Digest::chunk);
  for (;;) {
    size_t n = read_some(file, buffer.get(), Digest::chunk);
    digest.add(buffer.get(), n);
    if (n < Digest::chunk) return digest.value();
  }
}

// Of an open file that stands at its beginning and has this size.
static TableContent content_of(int file, size_t size) {
#ifndef _WIN32
  if (is_local(file)) {
#ifdef MAP_POPULATE
    constexpr int flags = MAP_PRIVATE | MAP_POPULATE;  // all of it is read at once, for the digest
#else
    constexpr int flags = MAP_PRIVATE;
#endif
    void* p = ::mmap(nullptr, size, PROT_READ, flags, file, 0);
    if (p != MAP_FAILED) return {static_cast<const char*>(p), size, [size](void* all) { ::munmap(all, size); }};
  }
#endif
  TableContent read(size);
  if (read_some(file, read.data(), size) != size) throw TablesError("cut short while it was read");
  return read;
}

TableWriter::TableWriter(const Digest::Key& key, const Digest::Value& source)
    : key_(key), out_(sizeof(Header), '\0') {
  value(source);
}

std::string TableWriter::finish() {
  size_t size = out_.size() - sizeof(Header);
  Header header{magic, digest_of(std::string_view(out_).substr(sizeof(Header)), key_), size};
  std::memcpy(out_.data(), &header, sizeof header);
  return std::move(out_);
}

TableReader::TableReader(int file, uint64_t size, const Digest::Key& key, const Digest::Value& source) {
  if (size < sizeof(Header)) throw TablesError("shorter than a header");
  content_ = std::make_shared<TableContent>(content_of(file, static_cast<size_t>(size)));
  all_ = {content_->data(), content_->size()};
  Header header;
  value(header);
  if (header.magic != magic) throw TablesError("another kind of file");
  if (header.size != size - sizeof header) throw TablesError("cut short, or longer than it says");
  if (digest_of(all_.substr(sizeof header), key) != header.digest) throw TablesError("changed after it was written");
  Digest::Value of;
  value(of);
  if (of != source) throw TablesError("of another tokenizer.json");
}

void TableReader::finish() const {
  if (at_ != all_.size()) throw TablesError("something follows the tables");
}

}  // namespace fasttoken
