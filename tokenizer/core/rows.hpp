// Rows out of encoded texts: cut, put between the tokens of a post-processor, and padded; a column of all rows is
// written into one array.
//
//   texts --encode()--> ids, one after the other --cut()--> rows --put()--> a column
//
//   sequence     a text, or all words of one
//   row          one or two sequences, or parts of them, in a layout
//   invariants   encode(), cut() and put() are called in this order; texts outlive encode(). False from any of them:
//                nothing is known, and the caller has another way, which gives the error or the result
//   threads      encode() shares texts of many bytes out among threads of its own
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

#include "bridge.hpp"

namespace fasttoken {

// One with no utf8.data() is transcoded from its characters, which have 1, 2 or 4 bytes each.
struct RowText {
  std::string_view utf8;
  const void* characters = nullptr;
  size_t count = 0;  // of characters
  int width = 1;
  bool ascii = false;
  int32_t word = -1;  // its number in a list of words
};

// The texts of the first sequence, and of the second: -1: there is none.
struct RowSample {
  int64_t first = 1, second = -1;
};

// Of a layout, in order: tokens of the post-processor (sequence -1), or a sequence.
struct RowPiece {
  int sequence = -1;
  std::vector<int32_t> ids;
  int64_t type = 0;
  int64_t rest_type = 0;  // of a part that was cut off
};
using RowLayout = std::vector<RowPiece>;

struct RowCut {
  enum Strategy : int { none, longest_first, only_first, only_second };
  int strategy = none;
  uint64_t max_length = 0, stride = 0;
  bool left = false;        // the beginning of a text is cut off
  bool keeps_rest = false;  // the parts that are cut off become rows
  uint64_t added[2] = {};   // tokens that count as the post-processor's, of one sequence and of two
};

struct RowPadding {
  enum Kind : int { none, longest, fixed };
  int kind = none;
  uint64_t length = 0, multiple = 0;
  bool left = false;
  int64_t id = 0, type = 0;
};

enum class RowColumn : int { ids, types, attention, special, offsets, words };
// Each with those before it; words: the texts of added tokens too.
enum class RowContent : int { ids, offsets, words };

class Rows {
 public:
  Rows(const Core& core, bool parse_special, RowContent content)
      : core_(core), parse_special_(parse_special), content_(content) {}

  bool encode(const std::vector<RowText>& texts, const std::vector<RowSample>& samples);
  // Pieces of a layout are kept by address.
  bool cut(const RowLayout& single, const RowLayout& pair, const RowCut& rule, const RowPadding& padding);

  size_t count() const { return rows_.size(); }
  // With padding.
  size_t length(size_t row) const { return rows_[row].length; }
  uint32_t sample(size_t row) const { return rows_[row].sample; }
  bool are_equally_long() const { return equal_; }
  // Of all rows, with padding.
  size_t total() const { return total_; }
  size_t longest() const { return longest_; }
  // What each row is padded to, if it has fewer.
  size_t padded_to() const { return padded_to_; }
  size_t without_padding(size_t row) const { return rows_[row].size; }
  const RowLayout& layout(size_t row) const { return *rows_[row].layout; }

  // The part of a sequence that a row has.
  size_t size(size_t row, int number) const { return rows_[row].parts[number].size; }
  bool is_rest(size_t row, int number) const { return rows_[row].parts[number].rest; }
  const int32_t* ids(size_t row, int number) const {
    return sequence(row, number).chunk->ids.data() + first(row, number);
  }
  // The text of an added token or an unknown one, if content has words; null: the vocabulary says it.
  const std::string* text(size_t row, int number, size_t token) const;

  // One number a token, two for offsets, row after row; T: int32_t or int64_t.
  template <class T>
  void put(RowColumn column, T* out) const;

 private:
  struct Part {
    uint32_t begin = 0, size = 0;
    bool rest = false;
  };
  struct Row {
    const RowLayout* layout;
    uint32_t sample;
    Part parts[2];
    size_t size, length;  // without padding, with
  };
  // What one thread encoded.
  struct Chunk {
    CallIds ids;
    std::vector<Align> offsets;  // not trimmed
    std::vector<int32_t> words;
    std::vector<Encoded::Added> added;  // of texts whose ids do not say where they lie
  };
  struct Sequence {
    const Chunk* chunk = nullptr;
    size_t begin = 0, size = 0;
  };
  struct Kept {  // of one sequence: what stays, and the parts that were cut off
    Part stays;
    std::vector<Part> rest;
  };

  const Sequence& sequence(size_t row, int number) const {
    return sequences_[2 * rows_[row].sample + size_t(number)];
  }
  size_t first(size_t row, int number) const { return sequence(row, number).begin + rows_[row].parts[number].begin; }
  bool encode(const RowText* texts, const RowSample* from, const RowSample* to, Sequence* out, Chunk& chunk) const;
  bool encode(const RowText& text, Chunk& chunk) const;
  static bool cut(size_t size, uint64_t kept, const RowCut& rule, Kept& out);
  bool cut(size_t sample, const RowCut& rule, Kept* out) const;
  void add(size_t sample, const RowLayout& layout, const Part& first, const Part& second);
  void pad(const RowPadding& padding, size_t longest);

  const Core& core_;
  const bool parse_special_;
  const RowContent content_;
  std::deque<Chunk> chunks_;
  std::vector<Sequence> sequences_;  // two a sample; the second may be none
  std::vector<RowSample> samples_;
  std::vector<Row> rows_;
  RowPadding padding_;
  size_t total_ = 0, longest_ = 0, padded_to_ = 0;
  bool equal_ = true;
};

}  // namespace fasttoken
