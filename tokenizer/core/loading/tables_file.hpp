// The tables of a loaded tokenizer as a file, to be loaded again without the work of making them.
//
//   magic | digest, by the caller's key | size | digest of the tokenizer.json | arrays, each its length and its
//   elements
//
//   trust       nothing that was read is used before the digest of all of it has been compared. The key is secret,
//               so no file made without it passes; it also stands for the build, since another
//               build may lay its tables out in another way. Lengths are bounded by the rest of the file
//   in place    arrays are not copied: they are views of the content, and begin at multiples of `table_alignment`
//   not here    the caller checks the file's place and its writers
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "memory/big_array.hpp"
#include "memory/table_array.hpp"

namespace fasttoken {

// The file is wrong; nothing of it may be used.
struct TablesError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A digest of 128 bits, as fast as memory is read. Without the key, nothing can search for two contents with
// the same digest; it is no cryptographic hash otherwise.
//
//   block   its words and as many that are drawn from the key are added, and the products of each two summed to 128
//           bits: NH, as in VMAC. With random words the sums of any two blocks are equal once in 2^64
//   sum     it is mixed into two lanes, so that the order of blocks counts. The last block is filled up with zeros;
//           the length is mixed in at the end
class Digest {
 public:
  using Key = std::array<uint64_t, 8>;
  using Value = std::array<uint64_t, 2>;
  static constexpr size_t chunk = size_t{1} << 18;

  explicit Digest(const Key& key);
  // Content comes in chunks of this size and a last one that is shorter.
  void add(const char* p, size_t n);
  Value value() const;

 private:
  static uint64_t fold(uint64_t a, uint64_t b) {
    __uint128_t m = static_cast<__uint128_t>(a) * b;
    return static_cast<uint64_t>(m) ^ static_cast<uint64_t>(m >> 64);
  }
  static constexpr size_t words = 128, wide = 8 * words;
  void block(const char* p);
  Key key_;
  std::array<uint64_t, words> drawn_;
  Value lanes_;
  uint64_t bytes_ = 0;
};

Digest::Value digest_of(std::string_view content, const Digest::Key& key);
// Of an open file, from where it stands to its end.
Digest::Value digest_of(int file, const Digest::Key& key);

// The contents of a file of tables, mapped or read.
using TableContent = BigArray<char>;

inline constexpr size_t table_alignment = 64;

// What is done with tables: one call names all of an object's, which are arrays, values, and objects that have a
// tables(io) of their own.
template <class Io>
class Tables {
 public:
  static constexpr bool reads = false;
  template <class... Parts>
  void operator()(Parts&... parts) {
    (each(parts), ...);
  }

 private:
  template <class T>
  void each(T& part) {
    Io& io = static_cast<Io&>(*this);
    if constexpr (requires { part.tables(io); })
      part.tables(io);
    else if constexpr (requires { part.bytes(); } || std::is_same_v<T, std::string>)
      io.array(part);
    else
      io.value(part);
  }
};

// The bytes of all arrays in memory.
struct TableBytes : Tables<TableBytes> {
  size_t bytes = 0;
  void value(const auto&) {}
  void array(const auto& a) { bytes += a.bytes(); }
};

class TableWriter : public Tables<TableWriter> {
 public:
  // source: the digest of the tokenizer.json.
  TableWriter(const Digest::Key& key, const Digest::Value& source);
  template <class T>
  void value(const T& v) {
    static_assert(std::is_trivially_copyable_v<T> && std::has_unique_object_representations_v<T>);
    out_.append(reinterpret_cast<const char*>(&v), sizeof v);
  }
  template <class Array>
  void array(const Array& a) {
    using T = std::remove_cvref_t<decltype(*a.data())>;
    static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= table_alignment);
    static_assert(std::has_unique_object_representations_v<T>, "padding would carry bytes of the heap into a file");
    value(uint64_t{a.size()});
    out_.append((table_alignment - out_.size() % table_alignment) % table_alignment, '\0');
    out_.append(reinterpret_cast<const char*>(a.data()), a.size() * sizeof(T));
  }
  std::string finish();  // the file

 private:
  Digest::Key key_;
  std::string out_;
};

class TableReader : public Tables<TableReader> {
 public:
  static constexpr bool reads = true;
  // The file stands at its beginning and has this size. Throws unless it is unchanged since it was written.
  TableReader(int file, uint64_t size, const Digest::Key& key, const Digest::Value& source);
  template <class T>
  void value(T& v) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::memcpy(&v, take(sizeof v), sizeof v);
  }
  void array(std::string& a) {
    auto [p, n] = elements<char>();
    a.assign(p, n);
  }
  template <class T>
  void array(TableArray<T>& a) {
    auto [p, n] = elements<T>();
    a.view(p, n);
  }
  template <class T>
  void array(BigArray<T>& a) {
    auto [p, n] = elements<T>();
    a = BigArray<T>(p, n, nullptr);
  }
  // Throws if something is left.
  void finish() const;
  // The memory that the arrays are views of.
  std::shared_ptr<const TableContent> content() const { return content_; }

 private:
  template <class T>
  std::pair<const T*, size_t> elements() {
    uint64_t n;
    value(n);
    take((table_alignment - at_ % table_alignment) % table_alignment);
    if (n > (all_.size() - at_) / sizeof(T)) throw TablesError("an array goes past the end");
    return {reinterpret_cast<const T*>(take(n * sizeof(T))), static_cast<size_t>(n)};
  }
  const char* take(size_t n) {
    if (n > all_.size() - at_) throw TablesError("a value goes past the end");
    at_ += n;
    return all_.data() + at_ - n;
  }
  std::shared_ptr<const TableContent> content_;
  std::string_view all_;
  size_t at_ = 0;
};

}  // namespace fasttoken
