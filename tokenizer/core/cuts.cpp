// Where a text is cut so that its ids before and behind are those of two texts, whatever is written behind it:
//
//   text   the  c a t   s a            encode(X Y ...) = encode(X), encode(Y ...)
//   cut    X----------][Y-------...    the last cut is used: all that stands before it is never looked at again
//
//   words    a file with a pattern of split_plan.hpp, where a normalizer is a normal form at most. No match of these
//            patterns holds a space behind something else; nor, behind a letter, an end of line or a Chinese comma or
//            full stop. No normal form changes these four, joins them to a neighbour, or makes space of other
//            characters
//   marks    a file with joins (joins.hpp): before a space that no token has behind the character before it. Y begins
//            with a space, and so gets no mark before it
//   letters  a file whose texts all get a mark (Llama 2), or that is cut at blanks (blanks.hpp): at a space between
//            two ASCII letters or digits and two more, which neither has; Y gets the mark that the space would become
//   added    no content of an added token reaches across a cut (plan_cuts); a token before it strips nothing behind
//            it, and white space before a token that strips it ends behind the cut
#include "tokenizer.hpp"

namespace fasttoken {

namespace {

constexpr std::string_view comma = "\xE3\x80\x81", stop = "\xE3\x80\x82";

bool is_space(uint32_t c) { return ucd().is(c, rust_space) || ucd().is(c, re_space); }
bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_letter(char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }
bool may_begin(char c) { return c == ' ' || c == '\n' || c == comma[0]; }

}  // namespace

// Once the plans are made: of which kind the cuts of a file are, if its added tokens let it have any.
void Tokenizer::plan_cuts() {
  const bool marked = marks_.has_value();
  Cuts kind = Cuts::none;
  if (plan_ && marked) {
    kind = marks_->prefix == SpaceMarks::Prefix::each ? Cuts::letters : Cuts::marks;
  } else if (plan_ && (normalizer_.empty() || (normalizer_.keeps_ascii() && shown_.empty()))) {
    constexpr uint8_t in_words = class_letter | class_number | class_upper | class_special;
    const auto apart = [&](uint32_t c) { return !(plan_->classes.of(c) & in_words); };
    if (apart(' ') && apart('\n') && apart(0x3001) && apart(0x3002)) kind = Cuts::words;
  } else if (blanks_ && blanks_->is[' '] && normalizer_.replaces_only_blanks()) {
    kind = Cuts::letters;
    Scratch s;
    for (char c = '0'; c <= 'z'; ++c)
      if (is_letter(c)) {
        const std::string made = normalize({&c, 1}, s);
        if (made.size() != 1 || !is_letter(made[0])) return;
      }
  }
  for (const AddedToken& t : added_.tokens) {
    const std::string_view all = t.content;
    if (t.single_word && may_begin(all[0])) return;
    if (t.rstrip && t.normalized && !normalizer_.empty()) return;  // its last byte is one of normalized text
    if (kind == Cuts::letters && (is_letter(all.front()) || is_letter(all.back()) || all.find(' ') != all.npos))
      return;
    for (size_t i = 1; i < all.size(); ++i)
      if (may_begin(all[i]) && !is_blank(all[i - 1])) return;
    if (t.rstrip) strips_behind_[static_cast<unsigned char>(all.back())] = true;
  }
  cuts_ = kind;
}

Tokenizer::Cut Tokenizer::last_cut(std::string_view text, Scratch& s) const {
  if (cuts_ == Cuts::none) return {};
  const char* const from = text.data();
  if (cuts_ == Cuts::letters) {
    for (size_t p = text.size(); p-- > 2;)
      if (from[p] == ' ' && text.size() - p > 2 && is_letter(from[p - 2]) && is_letter(from[p - 1]) &&
          is_letter(from[p + 1]) && is_letter(from[p + 2]) &&
          !(marks_ && model_.bpe.joins().join(static_cast<unsigned char>(from[p - 1]), ' ')))
        return {p, p + 1};
    return {};
  }
  for (size_t p = text.size(); p-- > 1;) {
    if (!may_begin(from[p]) || strips_behind_[static_cast<unsigned char>(from[p - 1])]) continue;
    const std::string_view next = text.substr(p, 3);
    if (from[p] == comma[0] && next != comma && next != stop) continue;
    std::string_view before(utf8_back(from + p), from + p);
    const uint32_t c = utf8_at(before.data());
    if (is_space(c)) continue;
    if (cuts_ == Cuts::marks) {
      if (from[p] == ' ' && c != Joins::mark && !model_.bpe.joins().join(c, ' ')) return {p, p};
      continue;
    }
    if (from[p] == ' ') return {p, p};
    const std::string normal = normalizer_.empty() ? std::string(before) : normalize(before, s);
    if (normal.empty()) continue;
    const uint8_t bits = plan_->classes.of(utf8_at(utf8_back(normal.data() + normal.size())));
    if (bits & class_letter || (plan_->family == SplitFamily::scripted && bits & class_upper)) return {p, p};
  }
  return {};
}

Tokenizer::Counted Tokenizer::count(std::string_view text, size_t most, Scratch& s, IdBuffer& ids) const {
  constexpr size_t part = 4096;
  Counted found;
  size_t last = 0;
  for (size_t size = part;;) {
    const std::string_view rest = text.substr(last);
    const Cut cut = rest.size() > size ? last_cut(rest.substr(0, size), s) : Cut{};
    if (rest.size() > size && !cut.end && cuts_ != Cuts::none) {
      size *= 2;
      continue;
    }
    ids.clear();
    encode_ids(cut.end ? rest.substr(0, cut.end) : rest, true, s, ids);
    found.end = last + (cut.end ? cut.end : rest.size());
    if (found.ids + ids.size() > most || !cut.end) {
      found.ids += ids.size();
      return found;
    }
    found.from = last;
    found.before = found.ids;
    found.ids += ids.size();
    found.fits = found.end;
    last += cut.next;
    size = part;
  }
}

}  // namespace fasttoken
