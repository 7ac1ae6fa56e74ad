// Long texts with control tokens as they were encoded: a conversation comes again with a turn more, or a prompt with
// another question, and is encoded from where it differs on.
//
//   remembered   <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n
//   marks                    ^              ^               behind control tokens: all ids before are final
//   new          <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n ...
//                '------------- the same bytes ---------------------'
//
//   exact    Ids up to a mark were made by looking at no byte from its reach on. A text with the same bytes so far
//            has the same ids up to the mark, and goes on from it as one that was read from the beginning: behind a
//            control token the search (added.hpp) keeps nothing but where it stands. Bytes are compared, not hashes
//   kept     a text that is met a second time, by hints of where the marks of a text were; a text that continues a
//            kept one takes its place; of others the ones not used for longest go, until all are within `bound`
//   off      nothing is kept if PRELUDE_TOKENIZER_PROMPTS=off when the tokenizer is made
//   threads  any number. Kept entries do not change. Their list is replaced as a whole, and taken under a
//            lock for as long as it takes to copy a pointer. A thread that does not get it at once uses no list
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

namespace fasttoken {

class PromptCache {
 public:
  static constexpr size_t least = 2048;             // shorter texts are not looked for
  static constexpr size_t bound = size_t{4} << 20;  // bytes of texts and ids in all
  static constexpr size_t most_prompts = 32;

  struct Mark {
    uint32_t end, reach;  // past the control token; past the bytes that were read to know the ids before
    uint32_t ids;         // how many there are up to `end`
    bool rewritten;       // whether any of them is of anything but the text as it is
  };

  // The marks of a text while it is encoded, from the beginning or from a mark on: behind the first control token
  // that ends in each stretch of 512 bytes, the same ones wherever that was.
  class Marks {
   public:
    void start(const Mark& from) {
      marks_.clear();
      end_ = from.end;
      reach_ = from.reach;
    }
    // A control token, after which the text goes on as from its beginning, or not; reach: past the bytes that were
    // read to see it.
    void passed(uint32_t end, size_t reach, bool clean, size_t ids, bool rewritten, size_t size) {
      reach_ = std::max(reach_, reach);
      if (end / apart != end_ / apart && clean && reach_ <= size)
        marks_.push_back({end, static_cast<uint32_t>(reach_), static_cast<uint32_t>(ids), rewritten});
      end_ = end;
    }
    const std::vector<Mark>& marks() const { return marks_; }

   private:
    static constexpr uint32_t apart = 512;
    std::vector<Mark> marks_;
    uint32_t end_ = 0;
    size_t reach_ = 0;
  };

  PromptCache();

  struct Prompt;
  // The kept ids of a text.
  struct Known {
    std::shared_ptr<const Prompt> prompt;  // null: nothing
    Mark upto{0, 0, 0, false};             // of all of the text, if `whole`
    bool whole = false;
    bool continued = false;  // the text has all marks of the prompt

    const int32_t* ids() const;
  };
  Known find(std::string_view text) const {
    if (text.size() < least || !(firsts_.load(std::memory_order_relaxed) & first_bit(text))) return {};
    return look(text);
  }
  // The entries kept now.
  size_t bytes() const;
  size_t count() const;
  // A text and all of its ids, encoded from its kept part on. It is kept if that seems useful.
  void consider(std::string_view text, const Known& known, const std::vector<Mark>& marks, const int32_t* ids,
                size_t n, bool rewritten) const;

 private:
  using List = std::vector<std::shared_ptr<const Prompt>>;

  // One bit of 64 for how a text begins.
  static uint64_t first_bit(std::string_view text);
  Known look(std::string_view text) const;
  bool met_before(std::string_view text, const std::vector<Mark>& marks) const;
  void keep(std::shared_ptr<const Prompt> prompt, const Prompt* instead_of) const;

  const bool off_;
  mutable std::mutex lock_;
  mutable std::shared_ptr<const List> list_;               // under the lock
  mutable std::atomic<uint64_t> firsts_ = 0;               // first_bit() of each text that is kept
  mutable std::atomic<uint64_t> clock_ = 0;                // counts uses
  mutable std::array<std::atomic<uint16_t>, 4096> met_{};  // hints of marks that were met
};

}  // namespace fasttoken
