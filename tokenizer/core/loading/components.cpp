// The entrances of normalizers, pre-tokenizers and decoders: how each is read from a file, and its step.
// Compiled once, with all that they call, for loading.cpp and bridge.cpp.
#include "split/pretokenizers.hpp"
#include "text/normalizers.hpp"
#include "vocab/decoders.hpp"

namespace fasttoken {

namespace {

// The text that a step inserts.
std::string content_of(const Json& json) {
  std::string content(json.string());
  if (content.size() > most_content)
    json.fail(std::to_string(content.size()) + " bytes; at most " + std::to_string(most_content) + " are taken");
  return content;
}

// Of Metaspace: "always", "first" or "never".
std::string_view prepend_scheme(const Json& json) {
  std::string_view scheme = "always";
  const auto said = json.get("prepend_scheme");
  if (said) {
    scheme = said->string();
    if (scheme != "always" && scheme != "first" && scheme != "never") said->fail("not a scheme of Metaspace");
  }
  if (json.flag("add_prefix_space", true)) return scheme;
  if (said && scheme != "never") json.fail("add_prefix_space does not match prepend_scheme");
  return "never";  // as files of before prepend_scheme said it
}

// Called before a step is added to so many.
void require_step(const Json& json, size_t before) {
  if (before >= most_steps) json.fail("more than " + std::to_string(most_steps) + " steps");
}

}  // namespace

// ---- normalizers

void Normalizer::read(const Json& json) {
  std::string_view type = json.need("type").string();
  Step step;
  if (type == "Sequence") {
    json.need("normalizers").each([&](const Json& one) { read(one); });
    return;
  }
  require_step(json, steps_.size());
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    step.kind = type == "NFC" ? Kind::nfc : type == "NFD" ? Kind::nfd : Kind::nfk;
    step.compose = type == "NFKC";
  } else if (type == "Lowercase") {
    step.kind = Kind::lowercase;
  } else if (type == "Strip") {
    step.kind = Kind::strip;
    step.left = json.need("strip_left").boolean();
    step.right = json.need("strip_right").boolean();
  } else if (type == "StripAccents") {
    step = filter(combining_mark, 0);
  } else if (type == "Nmt") {
    step = filter(nmt_removed, nmt_space);
  } else if (type == "Replace") {
    step.kind = Kind::replace;
    step.pattern = Pattern::read(json.need("pattern"));
    step.content = content_of(json.need("content"));
    // HF aligns text inserted at the very start to nothing, and later steps then work on a part of the text.
    if (step.pattern.matches_empty() && !step.content.empty())
      throw Unsupported("a Replace that inserts text at empty matches", json.path());
  } else if (type == "Prepend") {
    step.kind = Kind::prepend;
    step.content = content_of(json.need("prepend"));
    // HF aligns the first character to nothing then.
    if (step.content.empty()) throw Unsupported("a Prepend of nothing", json.path());
  } else if (type == "ByteLevel") {
    step.kind = Kind::byte_level;
  } else if (type == "BertNormalizer") {
    return read_bert(json);
  } else if (type == "Precompiled") {
    step.kind = Kind::charsmap;
    const Json map = json.need("precompiled_charsmap");
    bool broken = false;
    std::optional<Charsmap> read = Charsmap::read(map.string(), broken);
    if (broken) throw FileError(map.path(), "a broken map of characters: look-ups lead out of it");
    if (!read) throw Unsupported("this map of characters", map.path());
    step.charsmap = std::make_shared<const Charsmap>(std::move(*read));
  } else {
    throw Unsupported("the normalizer " + std::string(type), json.path());
  }
  steps_.push_back(std::move(step));
}

void Normalizer::read_bert(const Json& json) {
  bool lower = json.need("lowercase").boolean();
  auto accents = json.get("strip_accents");
  if (json.need("clean_text").boolean()) steps_.push_back(filter(bert_removed, bert_space));
  Step step;
  if (json.need("handle_chinese_chars").boolean()) {
    step.kind = Kind::cjk;
    steps_.push_back(step);
  }
  if (accents ? accents->boolean() : lower) {
    step.kind = Kind::nfd;
    steps_.push_back(step);
    steps_.push_back(filter(mark_nonspacing, 0));
  }
  if (lower) {
    step.kind = Kind::lowercase;
    steps_.push_back(step);
  }
}

// ---- pre-tokenizers

void PreTokenizer::read(const Json& json) {
  std::string_view type = json.need("type").string();
  Step step;
  if (type == "Sequence") {
    json.need("pretokenizers").each([&](const Json& one) { read(one); });
    return;
  }
  require_step(json, steps_.size());
  if (type == "ByteLevel") {
    if (json.need("add_prefix_space").boolean()) {
      step.kind = Kind::prefix_space;
      steps_.push_back(step);
    }
    if (json.flag("use_regex", true)) {
      step.kind = Kind::split;
      step.pattern = Pattern::expression(gpt2, json.path());
      steps_.push_back(step);
    }
    step.kind = Kind::bytes;
  } else if (type == "Split") {
    step.kind = Kind::split;
    step.pattern = Pattern::read(json.need("pattern"));
    step.behavior = behavior(json.need("behavior"));
    step.invert = json.flag("invert", false);
  } else if (type == "Digits") {
    return chars(rust_numeric, json.need("individual_digits").boolean() ? Behavior::isolated : Behavior::contiguous);
  } else if (type == "Punctuation") {
    auto how = json.get("behavior");
    return chars(punctuation, how ? behavior(*how) : Behavior::isolated);
  } else if (type == "WhitespaceSplit") {
    return chars(rust_space, Behavior::removed);
  } else if (type == "BertPreTokenizer") {
    return cut_chars(rust_space, punctuation);
  } else if (type == "Whitespace") {
    step.kind = Kind::words;
    step.behavior = Behavior::removed;
    step.invert = true;
  } else if (type == "UnicodeScripts") {
    step.kind = Kind::scripts;
    step.behavior = Behavior::removed;
    step.invert = true;
  } else if (type == "CharDelimiterSplit") {
    step.kind = Kind::delimiter;
    step.character = json.need("delimiter").character();
    step.behavior = Behavior::removed;
  } else if (type == "FixedLength") {
    step.kind = Kind::fixed_length;
    auto length = json.get("length");
    uint64_t n = length ? length->integer() : 5;
    if (n == 0 || n > max_text) throw Unsupported("FixedLength of this length", json.path());
    step.length = static_cast<uint32_t>(n);
  } else if (type == "Metaspace") {
    read_metaspace(json, step);
  } else {
    throw Unsupported("the pre-tokenizer " + std::string(type), json.path());
  }
  steps_.push_back(std::move(step));
}

void PreTokenizer::read_metaspace(const Json& json, Step& step) {
  step.kind = Kind::metaspace;
  step.character = json.need("replacement").character();
  step.content.clear();
  utf8_append(step.content, step.character);
  step.split = json.flag("split", true);
  const std::string_view scheme = prepend_scheme(json);
  step.prepend = scheme == "first" ? Prepend::first : scheme == "never" ? Prepend::never : Prepend::always;
  step.pattern = Pattern::fixed(step.content);
  if (step.prepend != Prepend::first) return;
  needs_shift_ = true;
  follows_rewriting_ |= std::any_of(steps_.begin(), steps_.end(), [](const Step& before) {
    return before.kind == Kind::bytes || before.kind == Kind::prefix_space || before.kind == Kind::metaspace;
  });
}

// ---- decoders

void Decoder::read(const Json& json) {
  present_ = true;
  std::string_view type = json.need("type").string();
  Step step;
  if (type == "Sequence") {
    json.need("decoders").each([&](const Json& one) { read(one); });
    return;
  }
  require_step(json, steps_.size());
  if (type == "ByteLevel") {
    step.kind = Kind::byte_level;
  } else if (type == "ByteFallback") {
    step.kind = Kind::byte_fallback;
  } else if (type == "Fuse") {
    step.kind = Kind::fuse;
  } else if (type == "Strip") {
    step.kind = Kind::strip;
    step.character = json.need("content").character();
    step.start = limit(json.need("start"));
    step.stop = limit(json.need("stop"));
  } else if (type == "Replace") {
    step.kind = Kind::replace;
    step.pattern = Pattern::read(json.need("pattern"));
    step.content = content_of(json.need("content"));
  } else if (type == "Metaspace") {
    read_metaspace(json, step);
  } else if (type == "WordPiece") {
    step.kind = Kind::word_piece;
    step.content = json.need("prefix").string();
    step.cleanup = json.need("cleanup").boolean();
  } else if (type == "BPEDecoder") {
    step.kind = Kind::bpe;
    step.content = json.need("suffix").string();
  } else if (type == "CTC") {
    step.kind = Kind::ctc;
    step.content = json.need("pad_token").string();
    step.delimiter = json.need("word_delimiter_token").string();
    step.cleanup = json.need("cleanup").boolean();
  } else {
    throw Unsupported("the decoder " + std::string(type), json.path());
  }
  steps_.push_back(std::move(step));
}

void Decoder::read_metaspace(const Json& json, Step& step) {
  step.kind = Kind::metaspace;
  utf8_append(step.content, json.need("replacement").character());
  step.keep_first = prepend_scheme(json) == "never";
}

void Decoder::apply(const Step& step, Tokens& tokens, RegexScratch& scratch, Growth& growth) const {
  switch (step.kind) {
    case Kind::byte_level: {
      std::string bytes, text, room;
      for (const std::string& t : tokens) bytes += byte_level_decode(t, room).value_or(t);
      utf8_append_lossy(text, bytes);
      tokens.assign(1, text);
      break;
    }
    case Kind::byte_fallback:
      byte_fallback(tokens);
      break;
    case Kind::fuse: {
      std::string all;
      for (const std::string& t : tokens) all += t;
      tokens.assign(1, all);
      break;
    }
    case Kind::strip:
      for (std::string& t : tokens) strip(step, t);
      break;
    case Kind::replace:
      for (std::string& t : tokens) replace(step, t, scratch, growth);
      break;
    case Kind::metaspace:
    case Kind::word_piece:
    case Kind::bpe:
      for (size_t i = 0; i < tokens.size(); ++i) change(step, tokens[i], i == 0, i + 1 == tokens.size());
      break;
    case Kind::ctc:
      ctc(step, tokens);
      break;
  }
}

}  // namespace fasttoken
