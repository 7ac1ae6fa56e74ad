// The tables of a loaded tokenizer as a file, to be loaded again without the work of making them.
//
//   magic | digest, by the caller's key | size | digest of the tokenizer.json | arrays, each its length and its bytes
//
//   trust       nothing that was read is used before the digest of all of it has been compared. The key is secret,
//               so who does not have it makes no file that passes; it also stands for the build, since another
//               build may lay its tables out in another way. Lengths are bounded by what is left of the file
//   not here    who may write the file, and where it lies: that is the caller's
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "big_array.hpp"

namespace fasttoken {

// The file is not what it should be; nothing of it may be used.
struct TablesError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A digest of 128 bits, as fast as memory is read. Whoever does not know the key cannot look for two contents with
// the same digest; it is no cryptographic hash otherwise.
class Digest {
 public:
  using Key = std::array<uint64_t, 8>;
  using Value = std::array<uint64_t, 2>;
  static constexpr size_t chunk = size_t{1} << 18;

  explicit Digest(const Key& key) : key_(key), lanes_{key[0], key[1], key[2], key[3]} {}
  // Content comes in chunks of this size and a last one that is shorter.
  void add(const char* p, size_t n);
  Value value() const;

 private:
  static uint64_t fold(uint64_t a, uint64_t b) {
    __uint128_t m = static_cast<__uint128_t>(a) * b;
    return static_cast<uint64_t>(m) ^ static_cast<uint64_t>(m >> 64);
  }
  void block(const char* p);
  Key key_;
  std::array<uint64_t, 4> lanes_;
  uint64_t bytes_ = 0;
};

Digest::Value digest_of(std::string_view content, const Digest::Key& key);
// Of an open file, from where it stands to its end.
Digest::Value digest_of(int file, const Digest::Key& key);

class TableWriter {
 public:
  // source: the digest of the tokenizer.json.
  TableWriter(const Digest::Key& key, const Digest::Value& source);
  template <class T>
  void value(const T& v) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes(reinterpret_cast<const char*>(&v), sizeof v);
  }
  template <class Array>
  void array(const Array& a) {
    static_assert(std::is_trivially_copyable_v<std::remove_cvref_t<decltype(*a.data())>>);
    value(uint64_t{a.size()});
    bytes(reinterpret_cast<const char*>(a.data()), a.size() * sizeof(*a.data()));
  }
  std::string finish();  // the file

 private:
  void bytes(const char* p, size_t n);
  std::string out_;
  Digest digest_;
};

class TableReader {
 public:
  // The file stands at its beginning and has this size.
  TableReader(int file, uint64_t size, const Digest::Key& key, const Digest::Value& source);
  template <class T>
  void value(T& v) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes(reinterpret_cast<char*>(&v), sizeof v);
  }
  template <class T>
  void array(std::vector<T>& a) {
    a.resize(length(sizeof(T)));
    bytes(reinterpret_cast<char*>(a.data()), a.size() * sizeof(T));
  }
  void array(std::string& a) {
    a.resize(length(1));
    bytes(a.data(), a.size());
  }
  template <class T>
  void array(BigArray<T>& a) {
    a = BigArray<T>(length(sizeof(T)));
    bytes(reinterpret_cast<char*>(a.data()), a.size() * sizeof(T));
  }
  // Throws if the digest is not that of the header.
  void finish();

 private:
  size_t length(size_t each) {
    uint64_t n;
    value(n);
    if (n > left_ / each) throw TablesError("an array goes past the end");
    return static_cast<size_t>(n);
  }
  void bytes(char* to, size_t n);
  int file_;
  uint64_t left_;
  Digest digest_;
  Digest::Value expected_{};
};

}  // namespace fasttoken
