// Decoding one token at a time, with the results of HF's DecodeStream.
//
//   byte-level decoders   text_ | tail_      text decoded and not yet given out, an unfinished character
//                         given out as soon as it does not end in U+FFFD, and then forgotten
//   others                ids_ , prefix_     decode all ids of the window, give out the text past the prefix. alone_:
//                         the window is one id that was given out, and another of whole characters adds its own text
//
//   The tokenizer outlives the stream; a stream belongs to one thread at a time.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer.hpp"

namespace fasttoken {

struct StreamError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class DecodeStream {
 public:
  DecodeStream(const Tokenizer* tokenizer, std::vector<uint32_t> ids, bool skip_special)
      : tokenizer_(tokenizer), skip_(skip_special), bytes_(tokenizer->decodes_bytes()) {
    if (!bytes_) {
      ids_ = std::move(ids);
      return;
    }
    for (uint32_t id : ids) feed(id);
    if (ready() || (text_.empty() && tail_.empty())) text_.clear();
  }

  // The new text, or nothing while a character is open.
  template <class Ids>
  std::optional<std::string> step(const Ids& ids, Scratch& s) {
    if (!bytes_) {
      open_window(s);
      return step_window(ids, s);
    }
    for (auto id : ids) feed(static_cast<uint32_t>(id));
    if (!ready()) return std::nullopt;
    std::string out;
    out.swap(text_);
    return out;
  }

  // The usual step: nothing is held back and the id is whole characters, which are given out as they lie in the
  // tokenizer. False: nothing was done, and step() has to.
  bool step_whole(uint32_t id, std::string_view& out) {
    if (!bytes_) return step_apart(id, out);
    if (!text_.empty() || !tail_.empty() || (skip_ && tokenizer_->is_special(id))) return false;
    out = tokenizer_->bytes(id);
    return !out.empty() && utf8_invalid_at(out) == std::string_view::npos && !ends_open(out);
  }

  // The held text; the stream is then as new.
  std::string finish(Scratch& s) {
    std::string out;
    if (bytes_) {
      out.swap(text_);
      utf8_append_lossy(out, tail_);
      tail_.clear();
      return out;
    }
    open_window(s);
    std::string all = tokenizer_->decode(ids_, skip_, s);
    if (all.starts_with(prefix_)) out = all.substr(prefix_.size());
    ids_.clear();
    prefix_.clear();
    index_ = 0;
    return out;
  }

 private:
  static bool ends_open(std::string_view text) { return text.ends_with("\xEF\xBF\xBD"); }
  bool ready() const { return !text_.empty() && tail_.empty() && !ends_open(text_); }

  void feed(uint32_t id) {
    if (skip_ && tokenizer_->is_special(id)) return;
    std::string_view bytes = tokenizer_->bytes(id);
    if (bytes.empty()) return;
    if (tail_.empty() && utf8_invalid_at(bytes) == std::string_view::npos) {
      text_.append(bytes);
      return;
    }
    tail_.append(bytes);
    size_t open = 0;  // bytes of a character that more of them can complete
    for (size_t n = 1; n <= std::min<size_t>(3, tail_.size()) && !open; ++n) {
      const char *p = tail_.data() + tail_.size() - n, *end = p + n;
      const unsigned char lead = static_cast<unsigned char>(*p);
      const Utf8Step step = utf8_step(p, end);
      if (lead >= 0xC2 && lead <= 0xF4 && !step.whole && step.length == n && n < utf8_length(lead)) open = n;
    }
    utf8_append_lossy(text_, std::string_view(tail_).substr(0, tail_.size() - open));
    tail_.erase(0, tail_.size() - open);
  }

  // Whether the text of the id is the same at every place, except for the part that the first id loses.
  bool is_apart(uint32_t id) const {
    if (tokenizer_->is_raw_byte(id) || (skip_ && tokenizer_->is_special(id))) return false;
    std::string_view text = tokenizer_->bytes(id);
    return !text.empty() && !ends_open(text);
  }
  bool step_apart(uint32_t id, std::string_view& out) {
    if (!tokenizer_->decodes_apart() || !is_apart(id)) return false;
    if (!alone_ && !(ids_.size() == 1 && index_ == 1 && is_apart(ids_[0]))) return false;
    out = tokenizer_->bytes(id);
    last_ = id;
    alone_ = true;
    return true;
  }
  // ids_, index_ and prefix_ as steps without alone_ would have left them.
  void open_window(Scratch& s) {
    if (!alone_) return;
    alone_ = false;
    ids_.assign(1, last_);
    index_ = 1;
    prefix_ = tokenizer_->decode(ids_, skip_, s);
  }

  template <class Ids>
  std::optional<std::string> step_window(const Ids& ids, Scratch& s) {
    if (prefix_.empty() && !ids_.empty()) {
      std::string fresh = tokenizer_->decode(ids_, skip_, s);
      if (!ends_open(fresh)) {
        prefix_ = std::move(fresh);
        index_ = ids_.size();
      }
    }
    for (auto id : ids) ids_.push_back(static_cast<uint32_t>(id));
    std::string all = tokenizer_->decode(ids_, skip_, s);
    if (all.size() <= prefix_.size() || ends_open(all)) return std::nullopt;
    if (!all.starts_with(prefix_))
      throw StreamError("the text changed before its end: \"" + prefix_ + "\" became \"" + all + "\"");
    std::string out = all.substr(prefix_.size());
    size_t next = ids_.size() - index_;
    ids_.erase(ids_.begin(), ids_.begin() + static_cast<long>(index_));
    prefix_ = tokenizer_->decode(ids_, skip_, s);
    index_ = next;
    return out;
  }

  const Tokenizer* tokenizer_;
  bool skip_, bytes_;
  std::string text_, tail_;
  std::vector<uint32_t> ids_;
  std::string prefix_;
  size_t index_ = 0;
  uint32_t last_ = 0;
  bool alone_ = false;
};

}  // namespace fasttoken
