// Patterns to programs. It runs once for a pattern, so it stands apart from the code that runs programs.
#include <string>
#include <utility>
#include <vector>

#include "regex/regex_parse.hpp"
#include "regex/regex_program.hpp"

namespace fasttoken {

namespace {

class RegexCompiler {
 public:
  RegexCompiler(std::string_view pattern, const std::string& path) : pattern_(pattern), path_(path) {}

  RegexProgram compile() {
    ReNode root = parse_regex(pattern_, path_);
    collect(root);
    if (!made_.classes.build(sets_)) refuse("too many distinct character sets");
    const auto [begins, empty] = first(root);
    made_.matches_empty = empty;
    if (!empty) made_.first = begins;
    emit(root, ~0ull);
    add(ReIns(ReOp::match));
    for (ReIns& i : made_.code)
      if (i.op == ReOp::split || i.op == ReOp::run || i.op == ReOp::ahead) {
        i.memo = made_.memos;
        made_.memos += i.op == ReOp::run ? 2 : 1;  // a run also remembers the states of its loop
      }
    const CharSet word = CharSet::flagged(onig_word);
    for (size_t i = 0; i < sets_.size(); ++i) {
      if (sets_[i].same(CharSet::one('\n'))) made_.newline = made_.classes.mask(i);
      if (sets_[i].same(word)) made_.word = made_.classes.mask(i);
    }
    return std::move(made_);
  }

 private:
  static constexpr uint32_t unlimited = UINT32_MAX;

  [[noreturn]] void refuse(const std::string& what) const {
    throw Unsupported("a pattern with " + what + ": " + std::string(pattern_), path_);
  }

  uint32_t number(const CharSet& set) {
    for (uint32_t i = 0; i < sets_.size(); ++i)
      if (sets_[i].same(set)) return i;
    sets_.push_back(set);
    return static_cast<uint32_t>(sets_.size() - 1);
  }
  void collect(const ReNode& node) {
    if (node.kind == ReKind::set || node.kind == ReKind::behind) number(node.set);
    if (node.kind == ReKind::assertion) {
      number(CharSet::one('\n'));
      if (node.assertion == ReAssert::word || node.assertion == ReAssert::not_word)
        number(CharSet::flagged(onig_word));
    }
    for (const ReNode& part : node.parts) collect(part);
  }
  uint64_t mask(const CharSet& set) { return made_.classes.mask(number(set)); }

  // The characters that a match of the node can begin with; second: whether it may also match nothing.
  std::pair<uint64_t, bool> first(const ReNode& node) {
    switch (node.kind) {
      case ReKind::set:
        return {mask(node.set), false};
      case ReKind::repeat: {
        if (node.max == 0) return {0, true};
        auto f = first(node.parts[0]);
        return {f.first, f.second || node.min == 0};
      }
      case ReKind::atomic:
        return first(node.parts[0]);
      case ReKind::alt: {
        std::pair<uint64_t, bool> all{0, false};
        for (const ReNode& p : node.parts) {
          auto f = first(p);
          all.first |= f.first;
          all.second |= f.second;
        }
        return all;
      }
      case ReKind::seq: {
        uint64_t all = 0;
        for (const ReNode& p : node.parts) {
          auto f = first(p);
          all |= f.first;
          if (!f.second) return {all, false};
        }
        return {all, true};
      }
      default:
        return {0, true};
    }
  }

  uint32_t add(ReIns i) {
    if (made_.code.size() > 20000) refuse("too large a program");
    made_.code.push_back(i);
    return static_cast<uint32_t>(made_.code.size() - 1);
  }
  uint32_t here() const { return static_cast<uint32_t>(made_.code.size()); }

  // follow: the characters that can come after the node; ~0 when any can, the end included.
  void emit(const ReNode& node, uint64_t follow) {
    switch (node.kind) {
      case ReKind::set:
        made_.code[add(ReIns(ReOp::set))].mask = mask(node.set);
        return;
      case ReKind::seq: {
        for (size_t p = 0; p < node.parts.size(); ++p) {
          uint64_t after = 0;
          bool open = true;
          for (size_t q = p + 1; q < node.parts.size() && open; ++q) {
            auto f = first(node.parts[q]);
            after |= f.first;
            open = f.second;
          }
          emit(node.parts[p], open ? after | follow : after);
        }
        return;
      }
      case ReKind::alt:
        return emit_alt(node, follow);
      case ReKind::repeat:
        return emit_repeat(node, follow);
      case ReKind::ahead:
      case ReKind::atomic: {
        ReIns i{node.kind == ReKind::ahead ? ReOp::ahead : ReOp::atomic};
        i.negative = node.negative;
        uint32_t at = add(i);
        emit(node.parts[0], ~0ull);
        add(ReIns(ReOp::leave));
        made_.code[at].x = here();
        return;
      }
      case ReKind::assertion:
        made_.code[add(ReIns(ReOp::assertion))].assertion = node.assertion;
        return;
      case ReKind::behind: {
        ReIns i{ReOp::behind};
        i.negative = node.negative;
        i.mask = mask(node.set);
        add(i);
        return;
      }
    }
  }

  uint64_t begins(const ReNode& node, uint64_t follow) {
    auto f = first(node);
    return f.second ? f.first | follow | ~CharClasses::every : f.first;
  }

  void emit_alt(const ReNode& node, uint64_t follow) {
    std::vector<uint32_t> ends;
    for (size_t p = 0; p < node.parts.size(); ++p) {
      uint32_t fork = 0;
      bool last = p + 1 == node.parts.size();
      if (!last) {
        ReIns i{ReOp::split};
        i.mask = begins(node.parts[p], follow);
        i.other = 0;
        for (size_t q = p + 1; q < node.parts.size(); ++q) i.other |= begins(node.parts[q], follow);
        fork = add(i);
        made_.code[fork].x = here();
      }
      emit(node.parts[p], follow);
      if (!last) {
        ends.push_back(add(ReIns(ReOp::jump)));
        made_.code[fork].y = here();
      }
    }
    for (uint32_t e : ends) made_.code[e].x = here();
  }

  void emit_repeat(const ReNode& node, uint64_t follow) {
    const ReNode& body = node.parts[0];
    if (node.max == 0) return;
    if (body.kind == ReKind::set) {
      ReIns i{ReOp::run};
      i.greed = node.greed;
      i.mask = mask(body.set);
      i.x = node.min;
      i.y = node.max;
      if (i.greed == ReGreed::greedy && !(i.mask & follow)) i.greed = ReGreed::possessive;
      add(i);
      return;
    }
    if (first(body).second && node.max > 1) refuse("a repetition of an empty match");
    if (node.greed == ReGreed::possessive) {
      uint32_t at = add(ReIns(ReOp::atomic));
      emit_loop(node, body, ~0ull, true);
      add(ReIns(ReOp::leave));
      made_.code[at].x = here();
      return;
    }
    emit_loop(node, body, follow, node.greed != ReGreed::lazy);
  }

  void emit_loop(const ReNode& node, const ReNode& body, uint64_t follow, bool greedy) {
    uint64_t begin = begins(body, follow), after = follow;
    auto fork = [&] {
      ReIns i{ReOp::split};
      i.mask = greedy ? begin : after;
      i.other = greedy ? after : begin;
      return add(i);
    };
    auto set_exit = [&](uint32_t at, uint32_t in, uint32_t out) {
      made_.code[at].x = greedy ? in : out;
      made_.code[at].y = greedy ? out : in;
    };
    for (uint32_t i = 0; i < node.min; ++i) emit(body, begin | follow);
    if (node.max == unlimited) {
      uint32_t at = fork();
      emit(body, begin | follow);
      uint32_t loop = add(ReIns(ReOp::jump));
      made_.code[loop].x = at;
      set_exit(at, at + 1, here());
      return;
    }
    std::vector<uint32_t> forks;
    for (uint32_t i = node.min; i < node.max; ++i) {
      forks.push_back(fork());
      emit(body, begin | follow);
    }
    for (uint32_t at : forks) set_exit(at, at + 1, here());
  }

  std::string_view pattern_;
  const std::string& path_;
  std::vector<CharSet> sets_;
  RegexProgram made_;
};

}  // namespace

ReNode parse_regex(std::string_view pattern, const std::string& path) { return RegexParser(pattern, path).parse(); }

RegexProgram compile_regex(std::string_view pattern, const std::string& path) {
  return RegexCompiler(pattern, path).compile();
}

}  // namespace fasttoken
