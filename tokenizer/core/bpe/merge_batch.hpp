// Words to be merged together, and their tokens: the look-ups of one wait while those of others are made.
//
//   batch.clear(); batch.add(...) each; batch_merger(best_isa())(merges, batch); batch[i] each
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "bpe/merging.hpp"
#include "memory/isa.hpp"

namespace fasttoken {

class MergeBatch {
 public:
  static constexpr size_t longest = Merger::linear_limit;  // of a word, in symbols

  void clear() {
    symbols_ = 0;
    words_.clear();
  }
  size_t size() const { return words_.size(); }

  // A word of 1 to `longest` symbols, n of them: id_of(0), id_of(1)... in the order of the text.
  template <class IdOf>
  void add(size_t n, IdOf&& id_of) {
    if (symbols_ + n + 2 * margin > ids_.size()) ids_.resize(2 * symbols_ + 1024);
    uint32_t* to = ids_.data() + margin + symbols_;
    for (size_t i = 0; i < n; ++i) to[n - 1 - i] = id_of(i);
    words_.push_back({static_cast<uint32_t>(symbols_), static_cast<uint32_t>(n)});
    symbols_ += n;
  }
  // Of bytes, each with its token.
  void add(std::string_view word, const uint32_t* byte_ids) {
    add(word.size(), [&](size_t i) { return byte_ids[static_cast<unsigned char>(word[i])]; });
  }

  // After merging: the tokens of the i-th word that was added, their lengths in symbols.
  std::span<const Symbol> operator[](size_t i) const { return {tokens_.data() + words_[i].from, words_[i].size}; }

  // For the function that merges them.
  struct Word {
    uint32_t from, size;  // in the symbols before, in tokens_ after
  };
  static constexpr size_t margin = longest;  // of bytes that may be read on either side, and mean nothing
  uint32_t* ids() { return ids_.data() + margin; }
  size_t symbols() const { return symbols_; }
  ScratchVector<Word>& words() { return words_; }
  ScratchVector<Symbol>& tokens() { return tokens_; }
  ScratchVector<uint64_t>& keys() { return keys_; }

 private:
  size_t symbols_ = 0;
  ScratchVector<uint32_t> ids_;
  ScratchVector<uint64_t> keys_;
  ScratchVector<Symbol> tokens_;
  ScratchVector<Word> words_;
};

using MergeWords = void (*)(const MergeTable&, MergeBatch&);

// The one for a set of instructions; kernels.cpp has it.
MergeWords batch_merger(Isa isa);

}  // namespace fasttoken
