// An array that is made while a tokenizer.json is loaded (own_), or lies in a file of tables that was read, which the
// tokenizer keeps and nothing writes to.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

namespace fasttoken {

template <class T>
class TableArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  TableArray() = default;
  TableArray(size_t n, const T& value) { assign(n, value); }
  TableArray(TableArray&&) = default;
  TableArray& operator=(TableArray&&) = default;

  void view(const T* data, size_t n) {
    own_ = {};
    data_ = data;
    size_ = n;
  }

  // Only of one that is made here.
  void reserve(size_t n) {
    changed([&] { own_.reserve(n); });
  }
  void assign(size_t n, const T& value) {
    changed([&] { own_.assign(n, value); });
  }
  void resize(size_t n, const T& value) {
    changed([&] { own_.resize(n, value); });
  }
  void push_back(const T& value) {
    changed([&] { own_.push_back(value); });
  }
  void append(const T* p, size_t n) {
    changed([&] { own_.insert(own_.end(), p, p + n); });
  }
  void swap(std::vector<T>& other) {
    changed([&] { own_.swap(other); });
  }
  void clear() {
    changed([&] { own_ = {}; });
  }
  T& operator[](size_t i) { return const_cast<T&>(data_[i]); }

  const T& operator[](size_t i) const { return data_[i]; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  // Its bytes in memory.
  size_t bytes() const { return (own_.empty() ? size_ : own_.capacity()) * sizeof(T); }

 private:
  template <class F>
  void changed(F&& change) {
    change();
    data_ = own_.data();
    size_ = own_.size();
  }
  std::vector<T> own_;
  const T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace fasttoken
