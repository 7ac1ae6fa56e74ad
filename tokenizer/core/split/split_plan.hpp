// Whether a file's pattern is one of the families that word_kernel.hpp cuts without an engine, and its tables.
//
//   gpt2     CONTRACTION| ?L+| ?N+| ?O+|\s+(?!\S)|\s+
//   prefixed CONTRACTION|[^\r\nLN]?L+|N{1,d}| ?O+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+       Llama 3, Qwen, GPT-4
//   cased    [^\r\nLN]?U*W+|[^\r\nLN]?U+W*|N{1,d}| ?O+[\r\n/]*|\s*[\r\n]+|...            Mistral Nemo
//            the same with a CONTRACTION behind the letters                            GPT-4o
//   scripted N{1,3}, then C+, then of the rest A[a-zA-Z]+|[^\r\nLO]?L+| ?O+[\r\n]*|\s*[\r\n]+|...
//                                                                                       DeepSeek-V3
//
//   spaced   no pattern: words begin where no merge reaches across (joins.hpp)    Llama 2, Mistral 7B, Phi-3, Gemma,
//   Yi
//
//   L, N any sets that share nothing with each other and with \s; O the characters in none of the three. scripted: O
//   is a set of its own, A its ASCII part, C any set, and joined_splits.hpp makes one pattern of the three.
//
//   A family is recognized by the tree of the parsed pattern, part by part, and its sets: never by the name of
//   a file, and not by the spelling. A pattern that is almost the same is not recognized.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bpe/joins.hpp"
#include "bpe/wide_joins.hpp"
#include "regex/regex.hpp"
#include "regex/regex_program.hpp"
#include "split/joined_splits.hpp"

namespace fasttoken {

enum class SplitFamily : uint8_t { none, gpt2, prefixed, cased, scripted, spaced };

// The class of a character for a kernel. A code point has one of letter, number, space or none of them.
enum Class : uint8_t {
  class_letter = 1,
  class_number = 2,
  class_space = 4,
  class_newline = 8,   // of the spaces, those that end a line
  class_blank = 16,    // ' ' itself
  class_quote = 32,    // the apostrophe; cased: '/', where it may follow an end of line; scripted: of ASCII, the rest
  class_upper = 64,    // cased: letters that cannot follow within a word; scripted: the characters of C
  class_special = 128  // cased: letters of both cases, and marks, which are left to the table; scripted: in C
                       // punctuation, else characters of no set, left to the table
};

// The class that the first byte of a character tells alone, where all characters that begin with it are letters and
// nothing else, all letters of both cases, or all in C; Han characters share their first (U+4E00 on) and their last
// (up to U+9F7F) with others.
enum Lead : uint8_t { lead_two = 1, lead_three = 2, lead_from = 4, lead_to = 8, lead_upper = 16, lead_special = 32 };
inline constexpr uint8_t lead_from_byte = 0xB8, lead_to_byte = 0xBE;  // the second byte from which, up to which

struct ClassTable {
  std::array<uint8_t, 128> ascii{};
  std::array<uint8_t, 128> leads{};  // bits of Lead, by the byte less 128
  PagedTable<uint8_t> bits;

  uint8_t of(uint32_t c) const { return bits[c]; }
  // Of the 64 characters that differ from c in the lowest six bits alone.
  const uint8_t* row(uint32_t c) const { return bits.at(c & ~63u); }

  void mark(const CharSet& set, uint8_t bit) {
    for (const CharSet::Range& r : set.ranges())
      bits.change(r.first, r.last + 1, [&](uint8_t all) { return static_cast<uint8_t>(all | bit); });
  }
  // Once all sets are marked.
  void finish() {
    std::copy_n(bits.at(0), ascii.size(), ascii.begin());
    auto all = [&](uint8_t char_class, uint32_t from, uint32_t to) {
      for (uint32_t c = from; c < to; ++c)
        if (of(c) != char_class) return false;
      return true;
    };
    for (uint32_t b = 0xC2; b < 0xE0; ++b)
      if (all(class_letter, (b & 31) << 6, ((b & 31) + 1) << 6)) leads[b - 128] = lead_two;
    constexpr uint8_t class_both = class_letter | class_special;
    for (uint8_t char_class : {uint8_t{class_letter}, uint8_t{class_upper}, class_both}) {
      uint8_t kind = char_class == class_upper ? lead_upper : char_class == class_both ? lead_special : 0;
      for (uint32_t b = 0xE1; b < 0xF0; ++b)
        if (all(char_class, (b & 15) << 12, ((b & 15) + 1) << 12)) leads[b - 128] = lead_three | kind;
      if (!leads[0xE4 - 128] && all(char_class, 0x4E00, 0x5000)) leads[0xE4 - 128] = lead_from | kind;
      if (!leads[0xE9 - 128] && all(char_class, 0x9000, 0x9F80)) leads[0xE9 - 128] = lead_to | kind;
    }
  }
};

struct SplitPlan {
  SplitFamily family = SplitFamily::none;
  bool contractions = false;   // cased: behind letters; else by themselves
  uint32_t digits = 1;         // at most so many to a piece; 0: no limit
  std::string_view trail{};    // characters that may follow O+: "", "\r\n" or "\r\n/"
  const Dfa* table = nullptr;  // the whole pattern, for words that the kernel leaves
  ClassTable classes;
  std::unique_ptr<Regex> joined{};  // whose table it is, where a file has several patterns
  const Joins* joins = nullptr;     // spaced: where words end
  const WideJoins* wide = nullptr;  // gpt2, prefixed: where words are cut further
  bool each_space = false;          // spaced: a word begins at each space, also behind another

  // spaced: past the first word of a text.
  size_t first_word(std::string_view text) const {
    const size_t cut = joins->first_cut(text, true);
    return each_space ? std::min(cut, text.find(' ', 1)) : cut;
  }
};

class PlanReader : private Shapes {
 public:
  // Nothing when the pattern is of no family. The regex outlives the plan.
  static std::unique_ptr<SplitPlan> read(const Regex& regex) {
    if (!regex.table()) return nullptr;
    ReNode root = parse_regex(regex.pattern(), "");
    auto plan = std::make_unique<SplitPlan>();
    plan->table = regex.table();
    if (root.kind != ReKind::alt || !PlanReader(root.parts, *plan).match()) return nullptr;
    return plan;
  }

  // Of three that cut a text one after the other.
  static std::unique_ptr<SplitPlan> read(const Regex& numbers, const Regex& scripts, const Regex& words) {
    std::optional<JoinedSplits> sets = JoinedSplits::read(
        parse_regex(numbers.pattern(), ""), parse_regex(scripts.pattern(), ""), parse_regex(words.pattern(), ""));
    if (!sets) return nullptr;
    auto plan = std::make_unique<SplitPlan>();
    plan->joined = std::make_unique<Regex>(sets->pattern(), "");
    plan->table = plan->joined->table();
    if (!plan->table) return nullptr;
    plan->family = SplitFamily::scripted;
    plan->digits = 3;
    plan->trail = "\r\n";
    ClassTable& classes = plan->classes;
    classes.mark(sets->letter, class_letter);
    classes.mark(sets->number, class_number);
    classes.mark(sets->script_letter, class_upper);
    classes.mark(sets->script_other, class_upper | class_special);
    classes.mark(sets->rest, class_special);
    classes.mark(sets->script_rest, class_special);
    classes.mark(sets->rest.common(CharSet::range(0, 127)), class_quote);
    finish(classes);
    return plan;
  }

  // joins outlives the plan.
  static std::unique_ptr<SplitPlan> spaced(const Joins& joins, bool each_space) {
    auto plan = std::make_unique<SplitPlan>();
    plan->family = SplitFamily::spaced;
    plan->joins = &joins;
    plan->each_space = each_space;
    return plan;
  }

 private:
  PlanReader(const Parts& parts, SplitPlan& plan) : parts_(parts), plan_(plan) {}

  bool match() {
    plan_.contractions = contractions();
    return gpt2() || prefixed() || cased();
  }

  // 's|'t|'re|'ve|'m|'ll|'d as alternatives of their own, or as one, in either case of letters.
  bool contractions() {
    static constexpr std::string_view each[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    folded_ = !parts_.empty() && fits(parts_[0], folded_contractions);
    if (!folded_ && (parts_.size() < std::size(each) ||
                     !std::equal(std::begin(each), std::end(each), parts_.begin(),
                                 [&](std::string_view shape, const ReNode& part) { return fits(part, shape); })))
      return false;
    at_ = folded_ ? 1 : std::size(each);
    return true;
  }

  // Whether the three are disjoint and O is all the rest.
  bool sets_fit(const CharSet& letter) const {
    const CharSet& number = (*this)['N'];
    CharSet all = letter;
    all.add(number);
    all.add(space());
    return apart(letter, number) && apart(letter, space()) && apart(number, space()) &&
           all.negated().same((*this)['O']);
  }

  bool gpt2() {
    if (folded_ || !fit(parts_, at_, {" ?L+", " ?N+", " ?O+", "\\s+(?!\\S)", "\\s+"}) || !sets_fit((*this)['L']))
      return false;
    plan_.family = SplitFamily::gpt2;
    plan_.digits = 0;
    fill((*this)['L'], {}, {});
    return true;
  }

  // ...|N{1,d}| ?O+[trail]*|\s*[\r\n]+|\s+(?!\S)|\s+
  bool common_end(size_t from) {
    if (!fit(parts_, from + 2, {"\\s*[\\r\\n]+", "\\s+(?!\\S)", "\\s+"})) return false;
    plan_.digits = fits(parts_[from], "N") ? 1 : fits(parts_[from], "N{1,3}") ? 3 : 0;
    constexpr std::pair<std::string_view, std::string_view> others[] = {
        {" ?O+", ""}, {" ?O+[\\r\\n]*", "\r\n"}, {" ?O+[\\r\\n/]*", "\r\n/"}};
    for (auto [shape, trail] : others) {
      plan_.trail = trail;
      if (fits(parts_[from + 1], shape)) return plan_.digits > 0;
    }
    return false;
  }

  // Of the characters that may stand before the letters: all but letters, numbers and ends of lines, and perhaps
  // some letters.
  bool prefix_fits(const CharSet& letter) const {
    CharSet never = (*this)['N'], always = letter;
    never.add(newline());
    always.add(never);
    return apart((*this)['B'], never) && always.negated().common((*this)['B'].negated()).empty();
  }

  bool prefixed() {
    if (plan_.contractions != folded_ || !common_end(at_ + 1) || !fits(parts_[at_], "B?L+")) return false;
    if (!prefix_fits((*this)['L']) || !sets_fit((*this)['L'])) return false;
    plan_.family = SplitFamily::prefixed;
    fill((*this)['L'], {}, {});
    return true;
  }

  bool cased() {
    if (plan_.contractions || !common_end(2)) return false;
    const std::string behind = std::string(folded_contractions) + "?";
    plan_.contractions = fits(parts_[0], "B?U*W+" + behind) && fits(parts_[1], "B?U+W*" + behind);
    if (!plan_.contractions && !(fits(parts_[0], "B?U*W+") && fits(parts_[1], "B?U+W*"))) return false;
    const CharSet &upper = (*this)['U'], &lower = (*this)['W'], &other = (*this)['O'];
    // Letters here: characters of the sets that are not among the others; marks are in both, and left to the table.
    CharSet all = upper;
    all.add(lower);
    CharSet letter = all.common(other.negated()), both = upper.common(lower);
    both.add(all.common(other));
    if (!prefix_fits(letter) || !sets_fit(letter)) return false;
    plan_.family = SplitFamily::cased;
    fill(letter, upper.common(lower.negated()), both);
    return true;
  }

  static void finish(ClassTable& classes) {
    classes.mark(space(), class_space);
    classes.mark(newline(), class_newline);
    classes.mark(CharSet::one(' '), class_blank);
    classes.finish();
  }
  void fill(const CharSet& letter, const CharSet& upper, const CharSet& special) {
    ClassTable& classes = plan_.classes;
    classes.mark(letter, class_letter);
    classes.mark((*this)['N'], class_number);
    if (plan_.family != SplitFamily::cased)
      classes.mark(CharSet::one('\''), class_quote);
    else if (plan_.trail.ends_with('/'))
      classes.mark(CharSet::one('/'), class_quote);
    classes.mark(upper, class_upper);
    classes.mark(special, class_special);
    finish(classes);
  }

  const Parts& parts_;
  SplitPlan& plan_;
  size_t at_ = 0;
  bool folded_ = false;
};

}  // namespace fasttoken
