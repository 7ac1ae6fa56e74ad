// What the steps of a file's normalizers and pre-tokenizers do to a text.
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
    case Kind::chinese:
      if (has(quick_cjk)) chinese(text);
      return;
    case Kind::charsmap:
      step.charsmap->apply(text);
      break;
  }
  seen = unknown;
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
