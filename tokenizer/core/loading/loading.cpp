// From a tokenizer.json, or from the tables that one became, to a Tokenizer.
#include <algorithm>
#include <bitset>
#include <cctype>
#include <iterator>
#include <tuple>
#include <unordered_set>

#include "tokenizer.hpp"

namespace fasttoken {

Tokenizer::Tokenizer(std::string_view file) {
  JsonDocument document(file);
  load(Json(document, 0, ""));
}

Tokenizer::Tokenizer(TableReader& in) {
  std::string file;
  in(file);
  tables(in);
  in.finish();
  content_ = in.content();
  tables_known_ = true;
  JsonDocument document(file);
  load(Json(document, 0, ""));
}

void Tokenizer::write_tables(TableWriter& out) const {
  std::string file = "{";
  for (auto& [name, text] : sections_) file.append("\"").append(name).append("\":").append(text).append(",");
  out(file.append("\"model\":").append(model_settings_).append("}"));
  const_cast<Tokenizer*>(this)->tables(out);  // which writes nothing to it
}

void Tokenizer::load(const Json& root) {
  if (root.kind() != JsonKind::object) throw FileError("$", "expected an object");
  static constexpr std::string_view known[] = {"version",        "truncation", "padding",
                                               "added_tokens",   "normalizer", "pre_tokenizer",
                                               "post_processor", "decoder",    "model"};
  root.each_pair([&](std::string_view name, const Json& value) {
    if (std::find(std::begin(known), std::end(known), name) == std::end(known))
      throw FileError(value.path(), "an unknown member");
    if (name != "model" && !value.is_null()) sections_[std::string(name)] = value.source();
  });
  if (auto version = root.find("version"); version && version->string() != "1.0")
    version->fail("version " + std::string(version->string()) + ", only 1.0 is known");
  ModelReader model(root.need("model"), model_, tables_known_);
  model.read();
  model_settings_ = model.settings();
  if (auto n = root.get("normalizer")) normalizer_.read(*n);
  if (auto p = root.get("pre_tokenizer")) pre_.read(*p);
  if (auto d = root.get("decoder")) decoder_.read(*d);
  if (auto p = root.get("post_processor")) read_post(*p);
  if (auto a = root.get("added_tokens")) added_.read(*a, model_.vocab);
  if (model_.kind == ModelKind::bpe) model_.bpe.index_bytes(model_.vocab);
  pre_.finish_loading(model_.kind == ModelKind::bpe && model_.bpe.knows_all_bytes());
  if (!tables_known_) {
    if (model_.kind == ModelKind::bpe)
      model_.bpe.finish_loading(model_.vocab, pre_.bytes_ready());
    else if (!(model_.kind == ModelKind::word_piece ? model_.word_piece.finish_loading(model_.vocab)
                                                    : model_.unigram.finish_loading(model_.vocab)))
      throw Unsupported("a vocabulary whose trie is too large", "model.vocab");
  }
  if (auto apart = decoder_.apart()) {
    leading_ = apart->leading;
    first_apart_ = apart->first;
  }
  needs_align_ = pre_.needs_shift_of_rewritten() || (pre_.needs_shift() && !normalizer_.empty());
  if (id_limit() > INT32_MAX) throw Unsupported("token ids beyond 31 bits", "model");
  index_added();
  plan();
  plan_cuts();
  const bool has_spans = plan_spans();
  if (tables_known_) return;
  index_ids();
  if (has_spans) index_spans();
}

// How ids alone are made, if the file is of a kind that a kernel knows.
void Tokenizer::plan() {
  if (model_.kind != ModelKind::bpe) return plan_blanks();
  if (normalized_.empty() && !pre_.bytes_ready() && model_.bpe.joins().built()) marks_ = read_marks();
  if (marks_) plan_ = PlanReader::spaced(model_.bpe.joins(), marks_->each_space);
  if (model_.bpe.plain_bytes()) {
    std::vector<const Regex*> patterns = pre_.only_patterns();
    if (patterns.size() == 1) plan_ = PlanReader::read(*patterns[0]);
    if (patterns.size() == 3) plan_ = PlanReader::read(*patterns[0], *patterns[1], *patterns[2]);
  }
  if (!plan_) return;
  // A token that merges do not make may be a word, but no part of one.
  if (model_.bpe.wide_joins().built() && !model_.bpe.config.ignore_merges) plan_->wide = &model_.bpe.wide_joins();
  cut_ = cutter(best_isa());
  plain_ascii_ = !marks_ && normalized_.empty() && normalizer_.keeps_ascii();
  caches_.reserve();
}

// What blanks do is tried out around one letter, which stands for all stretches (blanks.hpp).
void Tokenizer::plan_blanks() {
  if (!normalized_.empty() || !pre_.works_between_blanks() || !normalizer_.works_between_blanks(pre_.mark())) return;
  Blanks made;
  made.strict = !pre_.drops_white_space() || !normalizer_.keeps_white_space();
  if (!pre_.mark().empty()) made.mark = utf8_at(pre_.mark().data());
  Scratch s;
  const auto pieces_of = [&](const std::string& text) {
    std::vector<std::string> pieces;
    std::vector<Align> offsets;
    pre_tokenize(normalize(text, s), s, pieces, offsets);
    return pieces;
  };
  std::string x = "a";
  const auto whole = [&] { return made.stand_apart(normalize(x, s)) && pieces_of(x).size() == 1; };
  while (!whole())
    if (++x[0] > 'z') return;
  const std::vector<std::string> one = pieces_of(x), two{one[0], one[0]};
  std::vector<std::string> runs;
  for (char c : Blanks::candidates)
    if (pieces_of(x + c + x) == two) {
      made.is[static_cast<unsigned char>(c)] = true;
      runs.emplace_back(1, c);
    }
  if (runs.empty()) return;
  const size_t singles = runs.size();
  for (size_t from = 0; runs[from].size() < 3; ++from)
    for (size_t c = 0; c < singles; ++c) runs.push_back(runs[from] + runs[c]);
  const auto all = [&](auto&& holds) { return std::all_of(runs.begin(), runs.end(), holds); };
  made.together = all([&](const std::string& run) { return pieces_of(x + run + x) == two; });
  made.first = all([&](const std::string& run) { return pieces_of(run + x) == one; });
  made.last = all([&](const std::string& run) { return pieces_of(x + run) == one; });
  blanks_ = made;
  puts_mark_ = pre_.only_puts_mark();
  caches_.reserve();
}

// Nothing where more than marks is made of a text before the model.
std::optional<SpaceMarks> Tokenizer::read_marks() const {
  if (normalizer_.empty()) return pre_.only_marks_spaces(Bpe::mark);
  std::optional<bool> marks = normalizer_.only_marks_spaces(Bpe::mark);
  if (!marks || !pre_.only_splits_at(" ")) return std::nullopt;
  return SpaceMarks{*marks ? SpaceMarks::Prefix::each : SpaceMarks::Prefix::none, false};
}

void Tokenizer::read_post(const Json& json) {
  auto type = json.get("type");
  if (!type) return;
  if (type->string() == "Sequence")
    json.need("processors").each([&](const Json& one) { read_post(one); });
  else if ((type->string() == "ByteLevel" || type->string() == "RobertaProcessing") &&
           json.flag("trim_offsets", true))
    trim_passes_.push_back(json.flag("add_prefix_space", true));
}

void Tokenizer::index_added() {
  std::vector<std::pair<std::string, int32_t>> raw, normalized;
  Scratch s;
  size_t room = most_added;
  auto take = [&](const std::string& content) {
    if (content.size() > room)
      throw FileError("added_tokens", "contents of more than " + std::to_string(most_added) + " bytes in all");
    room -= content.size();
  };
  for (auto& [id, content] : added_.to_normalize) {
    take(content);
    std::string made = normalize(content, s);
    take(made);
    if (made != content) shown_[id] = std::move(made);
  }
  for (size_t index = 0; index < added_.tokens.size(); ++index) {
    const AddedToken& t = added_.tokens[index];
    auto made = shown_.find(t.id);
    const std::string& content = t.normalized && made != shown_.end() ? made->second : t.content;
    if (content.empty()) throw Unsupported("an added token that normalizes to nothing: " + t.content, "added_tokens");
    if (!t.normalized) take(content);
    if (content.size() > AddedMatcher::longest)
      throw Unsupported("an added token of more than " + std::to_string(AddedMatcher::longest) + " bytes",
                        "added_tokens");
    (t.normalized ? normalized : raw).push_back({content, static_cast<int32_t>(index)});
  }
  if (!raw_.build(raw) || !normalized_.build(normalized))
    throw Unsupported("added tokens that make too large a trie", "added_tokens");
}

void Tokenizer::index_ids() {
  uint32_t n = id_limit();
  special_.assign(n, 0);
  std::unordered_set<std::string_view> specials;
  std::bitset<64> lengths;  // of them, to spare most tokens the look-up
  for (auto& [content, _] : added_.special) {
    specials.insert(content);
    lengths.set(std::min<size_t>(content.size(), 63));
  }
  if (!trim_passes_.empty()) trims_.assign(n, {0, 0});
  for (uint32_t i = 0; i < n; ++i) {
    std::string_view t = token(i);
    if (!t.data()) continue;
    if (lengths[std::min<size_t>(t.size(), 63)]) special_[i] = specials.contains(t);
    if (!trims_.empty()) trims_[i] = fasttoken::trim_of(model_.vocab.has(i) ? model_.vocab.text(i) : t);
  }
  index_bytes();
}

void Tokenizer::index_bytes() {
  std::optional<Decoder::Apart> apart = decoder_.apart();
  if (!decodes_bytes() && !apart) return;
  uint32_t n = id_limit();
  token_bytes_.reserve(n);
  size_t room = most_added_to(n * sizeof(uint64_t));  // for the results of Replace over all tokens
  std::string made;
  Scratch s;
  for (uint32_t i = 0; i < n; ++i) {
    std::string_view t = token(i), bytes;
    bool raw = false;
    if (apart && t.data()) {
      try {
        made = decoder_.alone(t, s.regex(), &raw);
        raw = raw && !apart->first;
        bytes = made;
      } catch (const TextError&) {
        return token_bytes_.forget();  // it is said where the token is decoded
      }
      // It would part the bytes around it, and say nothing; or each of many tokens is made long.
      if (bytes.empty() || bytes.size() > room) return token_bytes_.forget();
      room -= bytes.size();
    } else if (t.data()) {
      bytes = byte_level_decode(t, made).value_or(t);
    }
    token_bytes_.add(bytes, raw);
  }
  token_bytes_.close();
}

// Whether ids may say where they lie, and how.
bool Tokenizer::plan_spans() {
  if (marks_) {
    spans_.read_marks(marks_->prefix != SpaceMarks::Prefix::none);
    const bool strips = std::any_of(added_.tokens.begin(), added_.tokens.end(),
                                    [](const AddedToken& t) { return !t.special && (t.lstrip || t.rstrip); });
    return !strips && (unknown_id() || model_.bpe.falls_back());  // else an unknown character is left out
  }
  if (!blanks_) return model_.kind == ModelKind::bpe && model_.bpe.plain_bytes();
  const bool has_prefix = model_.kind == ModelKind::word_piece && !model_.word_piece.whole_words;
  const std::string inside = has_prefix ? model_.word_piece.prefix : "";
  if (!normalizer_.replaces_only_blanks() || std::any_of(inside.begin(), inside.end(), [](char c) {
        return c <= ' ' || std::tolower(c) != std::toupper(c);
      }))
    return false;
  std::array<CharSpans::Kind, 128> ascii{};
  Scratch s;
  for (char c = 1; c < 0x7F; ++c) {
    CharSpans::Kind& known = ascii[static_cast<unsigned char>(c)];
    if (blanks_->is[static_cast<unsigned char>(c)]) known = CharSpans::blank;
    if (c <= ' ') continue;
    s.growth.start(1);
    s.text.start({&c, 1}, 0, true, s.growth);
    normalizer_.apply(s.text, s.pre.normalizer);
    const std::string_view made = s.text.view();
    if (made.size() == 1 && (made[0] == c || made[0] == std::tolower(c)) && s.text.align(0).end == 1)
      known = CharSpans::kept;
  }
  const bool unigram = model_.kind == ModelKind::unigram, fuses = unigram && !model_.unigram.byte_fallback;
  spans_.read_blanks(ascii, !pre_.drops_white_space(), fuses, inside);
  cuts_own_ = !unigram;
  return true;
}

// The text that each id stands for. Nothing is known where an id stands for two things, or trimming reads an
// added token's own text.
void Tokenizer::index_spans() {
  const uint32_t n = id_limit();
  const CharSpans::Of of = spans_.of();
  const std::string_view mark = of == CharSpans::Of::marks ? Bpe::mark : pre_.mark();
  const std::string_view start = mark.empty() && !model_.word_piece.whole_words ? model_.word_piece.prefix : mark;
  spans_.reserve(n);
  std::string room;
  for (uint32_t id = 0; id < n; ++id) {
    auto added = added_.by_id.find(id);
    std::string_view bytes;
    bool made = model_.vocab.has(id), fits = true, marked = false;
    if (made) bytes = model_.vocab.text(id);
    if (of == CharSpans::Of::bytes) {
      const auto decoded = byte_level_decode(bytes, room);
      made = made && decoded;
      bytes = decoded.value_or("");
    } else {
      marked = !start.empty() && bytes.starts_with(start);
      if (marked && of == CharSpans::Of::blanks) bytes.remove_prefix(start.size());
    }
    if (added != added_.by_id.end() && of != CharSpans::Of::blanks) {
      std::string_view content = added_.tokens[added->second].content;
      fits = !made || bytes == content;
      bytes = token(id);
      if (!trims_.empty()) {
        Trim known = trims_[id], found = fasttoken::trim_of(content);
        fits &= known.lead == found.lead && known.trail == found.trail;
      }
    }
    if (!fits || !spans_.add(id, bytes, marked)) return spans_.forget();
  }
  if (of == CharSpans::Of::bytes) return;
  const std::array<uint32_t, 256> ids = model_.vocab.byte_tokens();
  for (size_t b = 0; b < 256; ++b) {
    if (ids[b] == Vocab::hole) continue;
    const char byte = static_cast<char>(b);
    spans_.add(ids[b], {&byte, 1});
    if (model_.kind == ModelKind::unigram) spans_.leave_unsaid(ids[b]);  // each stands for all unknown ones in a row
  }
  if (auto id = unknown_id()) spans_.leave_unsaid(*id);
  if (of == CharSpans::Of::blanks) index_wide_spans();
}

// Tries out each character of two or three bytes alone, and between letters and beside itself if it may be a token by
// itself: no step of works_between_blanks() looks further. If the record says all, one character of it is tried.
void Tokenizer::index_wide_spans() {
  using Kind = CharSpans::Kind;
  const Unicode& u = ucd();
  Scratch s;
  std::array<std::optional<Kind>, 256> of_record{};
  std::vector<std::string> pieces;
  std::vector<Align> offsets;
  const auto try_out = [&](uint32_t c, uint32_t& becomes) {
    std::string text;
    utf8_append(text, c);
    s.growth.start(text.size());
    s.text.start(text, 0, true, s.growth);
    normalizer_.apply(s.text, s.pre.normalizer);
    const std::string made(s.text.view());
    const Align all = made.empty() ? Align{} : s.text.align(0);  // pre_tokenize() takes the text for its own
    if (cuts_own_ && !blanks_->strict && pre_.mark().empty() && made.find(text) != std::string::npos) {
      pieces.clear();
      pre_tokenize(normalize("a" + text + text + "a", s), s, pieces, offsets);
      if (pieces == std::vector<std::string>{"a", text, text, "a"}) return Kind::own;
    }
    if (made.empty() || utf8_count(made) > 1 || !blanks_->has_none(made)) return Kind::other;
    becomes = utf8_at(made.data());
    return all.begin == 0 && all.end == text.size() ? Kind::kept : Kind::other;
  };
  for (uint32_t c = ' ' + 1; c < BmpSet::end; ++c) {
    if (graphemes().flags(c) & joins_others || c == blanks_->mark || (c >= 0xD800 && c < 0xE000)) continue;
    std::optional<Kind> one, &kind = c >= 0x80 && normalizer_.goes_by_record(c) ? of_record[u.record(c)] : one;
    uint32_t becomes = c;
    if (!kind) kind = try_out(c, becomes);
    if (*kind == Kind::kept && becomes == c) plain_.add(c);
    const bool own = *kind == Kind::kept && spans_.fuses() && model_.unigram.is_foreign(becomes);
    if (c >= 0x80) spans_.add_wide(c, own ? Kind::own : *kind);
  }
}

}  // namespace fasttoken
