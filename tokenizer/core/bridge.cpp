#include "bridge.hpp"

#include <algorithm>
#include <cstring>
#include <span>

#include "text/utf8.hpp"
#include "vocab/stream.hpp"

namespace fasttoken {

namespace {

// The thread's scratch, for a text of so many bytes. The memory that a very long text took, up to a hundred times its
// size, is given back.
class ScratchFor {
 public:
  explicit ScratchFor(size_t text, Scratch& scratch = Tokenizer::scratch()) : text_(text), scratch_(scratch) {}
  ScratchFor(const ScratchFor&) = delete;
  ~ScratchFor() {
    if (text_ > long_text)
      static_cast<Workspace&>(scratch_) = Workspace();  // the buffers may be another thread's now
  }
  Scratch& get() { return scratch_; }

 private:
  static constexpr size_t long_text = size_t{1} << 18;
  size_t text_;
  Scratch& scratch_;
};

template <class T>
T read_raw(const char* raw) {
  T value;
  std::memcpy(value.data(), raw, sizeof value);
  return value;
}
std::string raw_of(const Digest::Value& value) { return {reinterpret_cast<const char*>(value.data()), sizeof value}; }

}  // namespace

CoreError current_error() {
  try {
    throw;
  } catch (const FileError& e) {
    return {CoreError::file, e.path, e.message};
  } catch (const Unsupported& e) {
    return {CoreError::unsupported, e.path, e.feature};
  } catch (const TextError& e) {
    return {CoreError::text, "", e.what()};
  } catch (const StreamError& e) {
    return {CoreError::stream, "", e.what()};
  } catch (const TablesError& e) {
    return {CoreError::tables, "", e.what()};
  } catch (const std::bad_alloc&) {
    return {CoreError::memory, "", ""};
  } catch (const std::exception& e) {
    return {CoreError::other, "", e.what()};
  }
}

CallIds::CallIds()
    : scratch_(Tokenizer::scratch()),
      buffers_(scratch_.lent ? *new CallBuffers : static_cast<CallBuffers&>(scratch_)) {
  buffers_.lent = true;
}
CallIds::~CallIds() {
  if (&buffers_ != &scratch_) {
    delete &buffers_;
    return;
  }
  buffers_.ids.clear();
  buffers_.lent = false;
}

std::string_view CallIds::utf8(const void* characters, size_t n, int width) {
  ScratchVector<char>& text = buffers_.utf8;
  const size_t room = n * static_cast<size_t>(std::min(width + 1, 4)) + transcode_margin;
  if (text.size() < room) text = ScratchVector<char>(room);
  const size_t size = utf8_of(characters, n, width, text.data());
  return size == not_transcoded ? std::string_view{} : std::string_view{text.data(), size};
}

// ---- a tokenizer

Core::Core(std::string_view file) : tokenizer_(std::make_unique<Tokenizer>(file)) {}
Core::Core(int file, uint64_t size, const char* key, const char* source) {
  TableReader in(file, size, read_raw<Digest::Key>(key), read_raw<Digest::Value>(source));
  tokenizer_ = std::make_unique<Tokenizer>(in);
}
Core::~Core() = default;

std::string Core::tables(const char* key, const char* source) const {
  TableWriter out(read_raw<Digest::Key>(key), read_raw<Digest::Value>(source));
  tokenizer_->write_tables(out);
  return out.finish();
}
size_t Core::table_bytes() const { return tokenizer_->table_bytes(); }
size_t Core::cache_bytes() const { return tokenizer_->cache_bytes(); }

bool Core::encode_ids(std::string_view text, bool parse_special, CallIds& call, bool ascii) const {
  ScratchFor s(text.size(), call.scratch_);
  return tokenizer_->encode_ids(text, parse_special, s.get(), call.ids(), ascii);
}
bool Core::encode_ids(std::string_view text, bool parse_special, IdBuffer& out, bool ascii) const {
  ScratchFor s(text.size());
  return tokenizer_->encode_ids(text, parse_special, s.get(), out, ascii);
}
void Core::last_cut(std::string_view text, size_t& end, size_t& next) const {
  const Tokenizer::Cut cut = tokenizer_->last_cut(text, Tokenizer::scratch());
  end = cut.end;
  next = cut.next;
}
void Core::count(std::string_view text, size_t most, CallIds& call, size_t (&found)[5]) const {
  ScratchFor s(text.size());
  const Tokenizer::Counted all = tokenizer_->count(text, most, s.get(), call.ids());
  for (size_t i = 0; size_t value : {all.ids, all.before, all.from, all.fits, all.end}) found[i++] = value;
}
bool Core::char_spans(const int32_t* ids, size_t n, size_t characters, std::string_view text, bool ascii, bool trims,
                      Align* out) const {
  return tokenizer_->char_spans(ids, n, characters, text, ascii, trims, out);
}
bool Core::spans_read_text() const { return tokenizer_->spans_read_text(); }
void Core::encode(std::string_view text, bool parse_special, bool chars, bool trim, Encoded& out) const {
  ScratchFor s(text.size());
  tokenizer_->encode(text, parse_special, s.get(), out);
  if (chars) to_characters(text, out.offsets);
  if (trim) tokenizer_->trim(out.ids.data(), out.ids.size(), out.added, 0, out.offsets.data());
}
void Core::trim_part(const int32_t* ids, size_t n, const std::vector<Encoded::Added>& added, size_t from,
                     Align* offsets) const {
  tokenizer_->trim(ids, n, added, from, offsets);
}
std::string Core::normalize(std::string_view text) const {
  ScratchFor s(text.size());
  return tokenizer_->normalize(text, s.get());
}
void Core::pre_tokenize(std::string_view text, std::vector<std::string>& pieces, std::vector<Align>& offsets) const {
  ScratchFor s(text.size());
  tokenizer_->pre_tokenize(text, s.get(), pieces, offsets);
  to_characters(text, offsets);
}

std::string Core::decode(const std::vector<uint32_t>& ids, bool skip_special) const {
  return tokenizer_->decode(ids, skip_special, Tokenizer::scratch());
}
std::string Core::decode_tokens(std::vector<std::string>& tokens) const {
  return tokenizer_->decode_tokens(std::move(tokens), Tokenizer::scratch());
}
std::string Core::token_bytes(uint32_t id) const { return tokenizer_->token_bytes(id, Tokenizer::scratch()); }
bool Core::decodes_bytes() const { return tokenizer_->decodes_bytes(); }
size_t Core::byte_count(const std::vector<uint32_t>& ids, bool skip_special) const {
  return tokenizer_->byte_count(ids, skip_special);
}
void Core::put_bytes(const std::vector<uint32_t>& ids, bool skip_special, char* out, size_t size) const {
  tokenizer_->put_bytes(ids, skip_special, out, size);
}

const std::vector<AddedToken>& Core::added() const { return tokenizer_->added(); }
const std::string* Core::section(const std::string& name) const { return tokenizer_->section(name); }
std::string_view Core::token(uint32_t id) const { return tokenizer_->token(id); }
std::string_view Core::model_token(uint32_t id) const { return tokenizer_->model_token(id); }
std::optional<uint32_t> Core::id(const std::string& token) const { return tokenizer_->id(token); }
size_t Core::size(bool with_added) const { return tokenizer_->size(with_added); }
uint32_t Core::id_limit() const { return tokenizer_->id_limit(); }
std::optional<uint32_t> Core::unknown_id() const { return tokenizer_->unknown_id(); }
bool Core::shows_unknown() const { return tokenizer_->shows_unknown(); }
const std::string& Core::model_settings() const { return tokenizer_->model_settings(); }
std::vector<uint32_t> Core::merges() const {
  std::vector<uint32_t> all;
  for (const Merge& merge : tokenizer_->model().bpe.merges.in_order()) all.insert(all.end(), {merge.a, merge.b});
  return all;
}
std::vector<double> Core::scores() const {
  std::vector<double> all;
  for (uint32_t id = 0; id < tokenizer_->model().vocab.end(); ++id)
    all.push_back(tokenizer_->model().unigram.score(id));
  return all;
}
void Core::vocab(bool with_added, std::vector<std::string_view>& tokens, std::vector<uint32_t>& ids) const {
  tokenizer_->each_token(with_added, [&](std::string_view token, uint32_t id) {
    tokens.push_back(token);
    ids.push_back(id);
  });
}

// ---- a stream

Stream::Stream(const Core* core, const std::vector<uint32_t>& ids, bool skip_special)
    : core_(core), stream_(std::make_unique<DecodeStream>(core->tokenizer_.get(), ids, skip_special)) {}
Stream::Stream(const Stream& other) : core_(other.core_), stream_(std::make_unique<DecodeStream>(*other.stream_)) {}
Stream::~Stream() = default;

bool Stream::step_whole(uint32_t id, std::string_view& out) { return stream_->step_whole(id, out); }
bool Stream::step(const uint32_t* ids, size_t n, std::string& out) {
  auto text = stream_->step(std::span(ids, n), Tokenizer::scratch());
  if (text) out = std::move(*text);
  return text.has_value();
}
std::string Stream::finish() { return stream_->finish(Tokenizer::scratch()); }

// ---- beside both

size_t characters_of(std::string_view text) { return utf8_count(text); }
std::string content_digest(std::string_view content, const char* key) {
  return raw_of(digest_of(content, read_raw<Digest::Key>(key)));
}
std::string file_digest(int file, const char* key) { return raw_of(digest_of(file, read_raw<Digest::Key>(key))); }

}  // namespace fasttoken
