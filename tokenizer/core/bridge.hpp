// The interface for the Python wrapper. It names nothing of how a tokenizer works, so that compiling the
// wrapper compiles no line of that: bridge.cpp does, once, and at the level that hot code wants.
//
//   Core      a loaded tokenizer: any number of threads, with a Scratch that belongs to the thread or to the call
//   Stream    decoding token by token: one thread at a time; the Core outlives it
//   CallIds   the ids of one call, in a buffer that the thread lends to it
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "encoded.hpp"
#include "errors.hpp"
#include "memory/scratch_vector.hpp"

namespace fasttoken {

class DecodeStream;
class Tokenizer;
struct Scratch;

struct CoreError {
  enum Kind : int { file, unsupported, text, stream, other, memory, tables };
  Kind kind;
  std::string path, message;
};
// Of the exception that is being handled.
CoreError current_error();

// The ids of one call. The call has the thread's buffers for itself while it lives, since making a list or an array
// of them may run a collection, and that anything at all, an encode too: that one gets buffers of its own.
class CallIds {
 public:
  CallIds();
  CallIds(const CallIds&) = delete;
  ~CallIds();
  const int32_t* data() const { return buffers_.ids.data(); }
  size_t size() const { return buffers_.ids.size(); }
  IdBuffer& ids() { return buffers_.ids; }

  // The UTF-8 of a text, while the call lives; no data(): utf8_of() does not say it.
  std::string_view utf8(const void* characters, size_t n, int width);

 private:
  friend class Core;
  Scratch& scratch_;  // of the thread that made it
  CallBuffers& buffers_;
};

class Core {
 public:
  explicit Core(std::string_view file);
  // From tables() as they lie in an open file of this size.
  Core(int file, uint64_t size, const char* key, const char* source);
  Core(const Core&) = delete;
  ~Core();

  std::string tables(const char* key, const char* source) const;
  size_t table_bytes() const;
  size_t cache_bytes() const;

  // Whether the ids say where they lie: char_spans() may be asked. ascii: it is known that the text is no more.
  // Into a call: in the thread that made it. Other threads give its buffer, and use their own scratch.
  bool encode_ids(std::string_view text, bool parse_special, CallIds& call, bool ascii) const;
  bool encode_ids(std::string_view text, bool parse_special, IdBuffer& out, bool ascii) const;
  // Tokenizer::Cut and Counted, in bytes.
  void last_cut(std::string_view text, size_t& end, size_t& next) const;
  void count(std::string_view text, size_t most, CallIds& call, size_t (&found)[5]) const;
  bool char_spans(const int32_t* ids, size_t n, size_t characters, std::string_view text, bool ascii, bool trims,
                  Align* out) const;
  bool spans_read_text() const;
  // chars: offsets in code points; trim: as the post-processor trims them.
  void encode(std::string_view text, bool parse_special, bool chars, bool trim, Encoded& out) const;
  // n tokens in a row; those in `added` are others than those of their ids, the first at index `from`.
  void trim_part(const int32_t* ids, size_t n, const std::vector<Encoded::Added>& added, size_t from,
                 Align* offsets) const;
  std::string normalize(std::string_view text) const;
  void pre_tokenize(std::string_view text, std::vector<std::string>& pieces, std::vector<Align>& offsets) const;

  std::string decode(const std::vector<uint32_t>& ids, bool skip_special) const;
  std::string decode_tokens(std::vector<std::string>& tokens) const;
  std::string token_bytes(uint32_t id) const;
  // Whether ids are just bytes, and then how many and which; out has room for just as many.
  bool decodes_bytes() const;
  size_t byte_count(const std::vector<uint32_t>& ids, bool skip_special) const;
  void put_bytes(const std::vector<uint32_t>& ids, bool skip_special, char* out, size_t size) const;

  const std::vector<AddedToken>& added() const;
  const std::string* section(const std::string& name) const;
  std::string_view token(uint32_t id) const;
  std::string_view model_token(uint32_t id) const;
  std::optional<uint32_t> id(const std::string& token) const;
  size_t size(bool with_added) const;
  uint32_t id_limit() const;
  std::optional<uint32_t> unknown_id() const;
  bool shows_unknown() const;
  const std::string& model_settings() const;
  // The two tokens of each merge, by rank; the score of each token of a Unigram.
  std::vector<uint32_t> merges() const;
  std::vector<double> scores() const;
  void vocab(bool with_added, std::vector<std::string_view>& tokens, std::vector<uint32_t>& ids) const;

 private:
  friend class Stream;
  std::unique_ptr<Tokenizer> tokenizer_;
};

class Stream {
 public:
  Stream(const Core* core, const std::vector<uint32_t>& ids, bool skip_special);
  Stream(const Stream& other);
  ~Stream();

  // The id is whole characters, which lie in the tokenizer. False: nothing was done, and step() has to.
  bool step_whole(uint32_t id, std::string_view& out);
  // False while a character is open.
  bool step(const uint32_t* ids, size_t n, std::string& out);
  std::string finish();

 private:
  const Core* core_;
  std::unique_ptr<DecodeStream> stream_;
};

size_t characters_of(std::string_view text);
// 16 bytes; the key has 64. Of a content, and of an open file from where it stands.
std::string content_digest(std::string_view content, const char* key);
std::string file_digest(int file, const char* key);

}  // namespace fasttoken
