// What the steps of a file's normalizers and pre-tokenizers do to a text.
#include <bit>
#include <cstring>
#include <optional>

#include "split/pretokenizers.hpp"

namespace fasttoken {

void Normalizer::take(const Step& step, Text& text, Scratch& scratch, unsigned& seen) {
  if (text.view().empty()) return;
  auto has = [&](unsigned any) {
    if (seen == unknown) seen = quick_of(text.view());
    return (seen & any) != 0;
  };
  switch (step.kind) {
    case Kind::nfc:
      nfc(text, scratch);
      break;
    case Kind::nfd:
      if (!has(quick_canonical | quick_mark)) return;
      nfd(text, scratch);
      break;
    case Kind::nfk:
      nfk(text, scratch, step.compose);
      break;
    case Kind::lowercase:
      if (!has(quick_lower)) return;
      lowercase(text);
      break;
    case Kind::strip:
      strip(text, step.left, step.right);
      break;
    case Kind::filter:
      if (step.quick && !has(step.quick)) return;
      filter(text, step.remove, step.space);
      if (step.quick) return;  // nothing new has come in
      break;
    case Kind::replace:
      replace(text, step.pattern, step.content, scratch);
      break;
    case Kind::prepend:
      prepend(text, text.whole(), step.content);
      break;
    case Kind::byte_level:
      byte_level(text);
      break;
    case Kind::cjk:
      if (has(quick_cjk)) chinese(text);
      return;
    case Kind::charsmap:
      step.charsmap->apply(text);
      break;
  }
  seen = unknown;
}

// Compose only around characters that a composed text need not keep. Nothing is copied until one changes.
void Normalizer::nfc(Text& text, Scratch& s) {
  static const DirtyOf dirty_of = dirty_finder(best_isa());
  constexpr size_t block = 64, read = block + 3;
  const std::string_view v = text.view();
  const Unicode& u = ucd();
  const char *const base = v.data(), *const end = base + v.size(), *done = base;
  std::optional<Rewrite> out;
  const auto compose = [&](const char* p) {
    const char *const from = p, *const starter = p > base ? utf8_back(p) : p;
    bool stays = true;  // marks that are in order and neither join the character before nor decompose
    uint8_t last = 0;
    for (; p < end; utf8_next(p)) {
      const uint32_t c = utf8_at(p);
      const uint8_t quick = u.quick(c);
      if (c < 0x300 || !(quick & quick_nfc)) break;
      const uint8_t k = u.combining_class(c);
      stays &= k >= last && !(quick & quick_canonical) && !u.is(c, composes_back);
      last = k;
    }
    done = p;
    if (stays || p == from) return;
    s.changed.clear();
    u.decomposed({starter, static_cast<size_t>(p - starter)}, false, s.changed);
    u.compose(s.changed);
    const char* same = starter;
    const auto is_same = [&](const Changed& x) { return x.change == 0 && same < p && utf8_next(same) == x.c; };
    if (std::all_of(s.changed.begin(), s.changed.end(), is_same) && same == p) return;
    if (!out) out.emplace(text, v.size() + v.size() / 8 + 16).piece(text.whole());
    out->copy_to(static_cast<size_t>(starter - base));
    out->put_all(s.changed, static_cast<size_t>(p - base));
  };
  for (const char* p = base; p < end; p += block) {
    char copy[read] = {};
    const size_t left = static_cast<size_t>(end - p);
    if (left < read) std::memcpy(copy, p, left);
    for (uint64_t dirty = dirty_of(left < read ? copy : p, u.dirty_rows().data()); dirty; dirty &= dirty - 1)
      if (const char* at = p + std::countr_zero(dirty); at >= done) compose(at);
  }
  if (!out) return;
  out->copy_to(v.size());
  out->finish();
}

void PreTokenizer::apply(Text& text, Scratch& s) const {
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::split:
        split(text, s, step, [&](std::string_view v, auto& spans) {
          step.pattern.each(v, s.normalizer.regex, [&](uint32_t b, uint32_t e) { spans.match(b, e); });
        });
        break;
      case Kind::chars:
        split(text, s, step, [&](std::string_view v, auto& spans) {
          each_char(v, [&](uint32_t c) { return ucd().is(c, step.flag); }, spans);
        });
        break;
      case Kind::cut_chars:
        cut_chars(text, s, step.dropped, step.flag);
        break;
      case Kind::delimiter:
        split(text, s, step, [&](std::string_view v, auto& spans) {
          each_char(v, [&](uint32_t c) { return c == step.character; }, spans);
        });
        break;
      case Kind::words:
        split(text, s, step, [](std::string_view v, auto& spans) { words(v, spans); });
        break;
      case Kind::scripts:
        split(text, s, step, [](std::string_view v, auto& spans) { scripts(v, spans); });
        break;
      case Kind::fixed_length:
        split(text, s, step, [&](std::string_view v, auto& spans) {
          const char *p = v.data(), *from = p, *end = p + v.size();
          for (uint32_t n = 0; p < end;) {
            utf8_next(p);
            if (++n % step.length && p < end) continue;
            spans.match(static_cast<uint32_t>(from - v.data()), static_cast<uint32_t>(p - v.data()));
            from = p;
          }
        });
        break;
      case Kind::prefix_space:
        prefix_space(text, s);
        break;
      case Kind::bytes:
        bytes(text, s);
        break;
      case Kind::metaspace:
        metaspace(text, s, step);
        break;
    }
  }
}

}  // namespace fasttoken
