// A loaded tokenizer: the whole way from text to tokens and back.
//
//   text --raw added tokens--> segments --normalize--> --normalized added tokens--> --pre-tokenize--> pieces
//        --model--> tokens --alignments--> offsets in the caller's bytes --> in code points, if wanted
//
//   invariants   everything here is written while loading and only read afterwards: any number of threads;
//                the memory of a call is a Scratch (one a thread)
//   words        every piece and every added token has the next number, also if it gives no token
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "loading/loader.hpp"
#include "loading/tables_file.hpp"
#include "model.hpp"
#include "sinks.hpp"
#include "split/blanks.hpp"
#include "split/pretokenizers.hpp"
#include "split/words.hpp"
#include "text/bmp_set.hpp"
#include "text/offsets.hpp"
#include "vocab/decoders.hpp"
#include "vocab/token_bytes.hpp"

namespace fasttoken {

class Tokenizer {
 public:
  // The file's bytes are not kept.
  explicit Tokenizer(std::string_view file);
  // From the tables that write_tables() wrote.
  explicit Tokenizer(TableReader& in);
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  const Model& model() const { return model_; }
  const std::vector<AddedToken>& added() const { return added_.tokens; }
  // Whether ids are made by word_kernel.hpp, and the largest size of its caches.
  bool cuts_by_kernel() const { return plan_ != nullptr; }
  size_t cache_bytes() const { return caches_.bytes() + model_.bpe.cache_bytes(); }
  const std::vector<bool>& trim_passes() const { return trim_passes_; }
  const std::string* section(const std::string& name) const {
    auto at = sections_.find(name);
    return at == sections_.end() ? nullptr : &at->second;
  }

  // Not inlined: compilers would ask for the thread's address again and again.
  [[gnu::noinline]] static Scratch& scratch() {
    static thread_local Scratch s;
    return s;
  }

  // The tables, and the rest of the file in its own words.
  void write_tables(TableWriter& out) const;
  // The bytes of the tables, and the most that the caches grow to.
  size_t table_bytes() const {
    TableBytes all;
    const_cast<Tokenizer*>(this)->tables(all);  // which writes nothing
    return all.bytes;
  }

  // ---- encoding

  // Appends the ids; whether char_spans() may be asked about them. ascii: the caller knows that the text is no more.
  bool encode_ids(std::string_view text, bool parse_special, Scratch& s, IdBuffer& out, bool ascii = false) const {
    check(text);
    s.growth.start(text.size());
    s.ascii = ascii;
    s.rewritten = !spans_.known();
    s.readable = text.data() + text.size();
    IdSink sink{out};
    run(text, parse_special, s, needs_align_, sink);
    return !s.rewritten;
  }
  void encode_ids(std::string_view text, bool parse_special, Scratch& s, std::vector<int32_t>& out) const {
    s.ids.clear();
    encode_ids(text, parse_special, s, s.ids);
    out.insert(out.end(), s.ids.data(), s.ids.data() + s.ids.size());
  }

  // The last place of a text at which it is cut in two, so that the ids before stay whatever is written behind it
  // (cuts.cpp): they are those of [0, end), and the others those of [next, ...). end: 0 where there is none.
  struct Cut {
    size_t end = 0, next = 0;
  };
  Cut last_cut(std::string_view text, Scratch& s) const;
  // The number of ids, if it is at most `most`; else a number past it, known by [0, end) of the text. At most `most`
  // are those of [0, fits); a prefix that ends behind `fits` has those of [from, ...) and `before` more.
  struct Counted {
    size_t ids = 0, before = 0, from = 0, fits = 0, end = 0;
  };
  Counted count(std::string_view text, size_t most, Scratch& s, IdBuffer& ids) const;

  void encode(std::string_view text, bool parse_special, Scratch& s, Encoded& out) const {
    check(text);
    s.growth.start(text.size());
    ColumnSink sink{out};
    run(text, parse_special, s, true, sink);
  }

  // The offsets in code points of all ids that encode_ids() made of a text of so many characters, if it said that it
  // knows. text: given if spans_read_text(); ascii: it is known to be no more. False: encode() has to say.
  bool char_spans(const int32_t* ids, size_t n, size_t characters, std::string_view text, bool ascii, bool trims,
                  Align* out) const {
    if (!spans_.known() || !spans_.put(ids, n, characters, text, ascii, out)) return false;
    if (trims) trim(ids, n, {}, 0, out);
    return true;
  }
  bool spans_read_text() const { return spans_.reads_text(); }

  Trim trim_of(uint32_t id) const { return id < trims_.size() ? trims_[id] : fasttoken::trim_of(token(id)); }

  // Of n tokens in a row; `added` says which tokens are others than those of their ids, the first at index `from`.
  void trim(const int32_t* ids, size_t n, std::span<const Encoded::Added> added, size_t from, Align* offsets) const {
    for (bool add_prefix_space : trim_passes_) {
      auto next = std::ranges::lower_bound(added, from, {}, &Encoded::Added::index);
      trim_offsets(offsets, n, add_prefix_space, [&](uint32_t i) {
        while (next != added.end() && next->index < from + i) ++next;
        if (next != added.end() && next->index == from + i) return fasttoken::trim_of(next->text);
        return trim_of(static_cast<uint32_t>(ids[i]));
      });
    }
  }

  std::string normalize(std::string_view text, Scratch& s) const {
    check(text);
    s.growth.start(text.size());
    s.text.start(text, 0, false, s.growth);
    normalizer_.apply(s.text, s.pre.normalizer);
    return std::string(s.text.view());
  }

  // The pieces of a text as the pre-tokenizer alone makes them, with their byte offsets.
  void pre_tokenize(std::string_view text, Scratch& s, std::vector<std::string>& pieces,
                    std::vector<Align>& offsets) const {
    check(text);
    s.growth.start(text.size());
    s.text.start(text, 0, true, s.growth);
    s.pre.pieces.clear();
    if (!text.empty()) s.pre.pieces.push_back(s.text.whole());
    pre_.apply(s.text, s.pre);
    for (const Piece& p : s.pre.pieces) {
      std::string_view v = s.text.view().substr(p.begin, p.end - p.begin);
      std::string& out = pieces.emplace_back();
      if (pre_.bytes_ready())
        for (unsigned char b : v) utf8_append(out, byte_level_char(b));
      else
        out = v;
      offsets.push_back({s.text.align(p.begin).begin, s.text.align(p.end - 1).end});
    }
  }

  // ---- vocabulary

  // Empty data(): no such token. An added token that is looked for in normalized text is shown normalized, as
  // HF shows it (and so it may no longer be known as special).
  std::string_view token(uint32_t id) const {
    if (auto at = added_.by_id.find(id); at != added_.by_id.end()) {
      auto shown = shown_.find(id);
      return shown != shown_.end() ? std::string_view(shown->second)
                                   : std::string_view(added_.tokens[at->second].content);
    }
    if (model_.vocab.has(id)) return model_.vocab.text(id);
    return {};
  }
  // The token as the model has it, for ids that came out of the model.
  std::string_view model_token(uint32_t id) const { return model_.vocab.has(id) ? model_.vocab.text(id) : token(id); }
  std::optional<uint32_t> id(const std::string& token) const {
    if (auto at = added_.ids.find(token); at != added_.ids.end()) return at->second;
    return model_.vocab.find(token);
  }
  // Calls f(token, id) for each string.
  template <class F>
  void each_token(bool with_added, F&& f) const {
    for (uint32_t i = 0; i < model_.vocab.end(); ++i)
      if (model_.vocab.has(i)) f(model_.vocab.text(i), i);
    if (with_added)
      for (auto& [content, i] : added_.ids) f(std::string_view(content), i);
  }
  size_t size(bool with_added) const {
    size_t n = model_.vocab.size();
    if (with_added)
      for (auto& [content, i] : added_.ids) n += !model_.vocab.find(content);
    return n;
  }
  // Past the largest id there is.
  uint32_t id_limit() const {
    uint32_t end = model_.vocab.end();
    for (const AddedToken& t : added_.tokens) end = std::max(end, t.id + 1);
    return end;
  }
  // Of the unknown token, which a Unigram names by its id and other models by its text, in the vocabulary or not.
  std::optional<uint32_t> unknown_id() const {
    if (model_.kind == ModelKind::unigram) return model_.unigram.unknown;
    const std::string& text =
        model_.kind == ModelKind::bpe ? model_.bpe.config.unknown_text : model_.word_piece.unknown;
    return text.empty() ? std::nullopt : id(text);
  }
  // Whether a token that is unknown is shown as the text it stands for.
  bool shows_unknown() const { return model_.kind == ModelKind::unigram; }
  bool is_special(uint32_t id) const { return id < special_.size() && special_[id] != 0; }

  // The model without vocabulary and merges, as JSON.
  const std::string& model_settings() const { return model_settings_; }

  // ---- decoding

  // bytes() of all ids in a row are the text's.
  bool decodes_bytes() const { return decoder_.only_byte_level(); }
  // The text of an id does not depend on its neighbours, except for bytes of one character and the text's first id.
  bool decodes_apart() const { return !decodes_bytes() && token_bytes_.known(); }
  // The text of an id, when either holds; empty for an id without a token.
  std::string_view bytes(uint32_t id) const { return token_bytes_[id]; }
  // When decodes_apart(): the id is one byte of a character.
  bool is_raw_byte(uint32_t id) const { return token_bytes_.is_raw(id); }
  // The bytes of all ids, when decodes_bytes(): how many, and put at out, which has room for just as many.
  size_t byte_count(const std::vector<uint32_t>& ids, bool skip_special) const {
    size_t n = 0;
    for (uint32_t id : ids)
      if (!skip_special || !is_special(id)) n += bytes(id).size();
    if (n > max_text) decoded_too_long();
    return n;
  }
  void put_bytes(const std::vector<uint32_t>& ids, bool skip_special, char* out, size_t size) const {
    const char* end = out + size;
    for (uint32_t id : ids)
      if (!skip_special || !is_special(id)) out = token_bytes_.put(id, out, end);
  }
  std::string token_bytes(uint32_t id, Scratch& s) const {
    return decodes_bytes() ? std::string(bytes(id)) : decoder_.alone(token(id), s.regex());
  }

  template <class Ids>
  std::string decode(const Ids& ids, bool skip_special, Scratch& s) const {
    if (decodes_bytes()) {
      std::string all, out;
      for (auto id : ids)
        if (!skip_special || !is_special(static_cast<uint32_t>(id))) all.append(bytes(static_cast<uint32_t>(id)));
      utf8_append_lossy(out, all);
      return out;
    }
    if (decodes_apart()) {
      const auto skip = [&](uint32_t i) { return skip_special && is_special(i); };
      std::span<const uint32_t> rest(ids);
      std::string all;
      if (first_apart_) {
        const auto first = std::ranges::find_if(rest, [&](uint32_t i) { return !bytes(i).empty() && !skip(i); });
        if (first == rest.end()) return all;
        all = decoder_.first(token(*first), s.regex());
        rest = {first + 1, rest.end()};
      }
      token_bytes_.append(all, rest, skip);
      if (leading_ && !all.empty() && utf8_at(all.data()) == *leading_)
        all.erase(0, utf8_length(static_cast<unsigned char>(all[0])));
      return all;
    }
    Decoder::Tokens tokens;
    size_t size = 0;
    for (auto id : ids) {
      uint32_t i = static_cast<uint32_t>(id);
      std::string_view t = token(i);
      if (t.data() == nullptr || (skip_special && is_special(i))) continue;
      if ((size += t.size()) > max_text) decoded_too_long();
      tokens.emplace_back(t);
    }
    return decode_tokens(std::move(tokens), s);
  }

  std::string decode_tokens(Decoder::Tokens tokens, Scratch& s) const {
    decoder_.apply(tokens, s.regex());
    std::string out;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i && !decoder_.present()) out += ' ';
      out += tokens[i];
    }
    return out;
  }

 private:
  static void check(std::string_view text) {
    if (text.size() > max_text) [[unlikely]]
      text_too_long();
  }
  [[noreturn, gnu::noinline]] static void text_too_long() {
    throw TextError("the text is longer than 512 MB", max_text);
  }

  template <class Sink>
  void run(std::string_view text, bool parse_special, Scratch& s, bool align, Sink& sink) const {
    if constexpr (std::is_same_v<Sink, IdSink>)
      if (marks_ && marks_->only_at_start() && text.find(Bpe::mark) == std::string_view::npos)
        return stretches(text, parse_special, s, sink);
    if (!text.empty() && !raw_.may_be_in(text)) return segment(text, 0, parse_special, s, align, sink);
    segments(text, parse_special, s, align, sink);
  }
  // Not inlined: a text without added tokens needs nothing of it.
  template <class Sink>
  [[gnu::noinline]] void segments(std::string_view text, bool parse_special, Scratch& s, bool align,
                                  Sink& sink) const {
    split_added(
        text, raw_, added_.tokens, parse_special,
        [&](uint32_t begin, uint32_t end) {
          std::string_view part = text.substr(begin, end - begin);
          if constexpr (std::is_same_v<Sink, IdSink>)
            if (part.size() < text.size() && may_know(part))
              return known_segment(part, parse_special, s, align, sink);
          segment(part, begin, parse_special, s, align, sink);
        },
        [&](uint32_t begin, uint32_t end, int32_t token) {
          s.rewritten |= spans_.of() != CharSpans::Of::bytes;
          sink.added(nullptr, begin, end, text.substr(begin, end - begin),
                     added_.tokens[static_cast<size_t>(token)].id);
        });
  }

  // The same for a file that marks spaces, where at most the text's beginning gets a mark before it, and for a text
  // without marks: it is cut by the kernel up to the next control token, together with all other added tokens, of
  // which such files have many (each end of line, say).
  void stretches(std::string_view text, bool parse_special, Scratch& s, IdSink& sink) const {
    uint32_t from = 0;
    s.stops.clear();
    auto put = [&](uint32_t end) {
      if (from < end) spaced_words(text.substr(from, end - from), from, s.stops, s, sink.out);
      s.stops.clear();
    };
    split_added(
        text, raw_, added_.tokens, parse_special, [](uint32_t, uint32_t) {},
        [&](uint32_t begin, uint32_t end, int32_t token) {
          const AddedToken& added = added_.tokens[static_cast<size_t>(token)];
          if (!added.special) return s.stops.push_back({begin - from, end - from, static_cast<int32_t>(added.id)});
          put(begin);
          s.rewritten = true;
          sink.added(nullptr, begin, end, text.substr(begin, end - begin), added.id);
          from = end;
        });
    put(static_cast<uint32_t>(text.size()));
  }

  // Whether a stretch between control tokens may be in a cache: its ids are then a matter of its bytes alone.
  bool may_know(std::string_view part) const {
    return plan_ && normalized_.empty() && part.size() <= ClauseCache::longest &&
           !(marks_ && marks_->prefix == SpaceMarks::Prefix::first);
  }
  // Its ids, which are kept the second time, where the caller's text was not rewritten for them.
  void known_segment(std::string_view part, bool parse_special, Scratch& s, bool align, IdSink& sink) const {
    const uint64_t hash = hash_of_text(part.data(), part.size());
    if (!caches_.met.again(hash)) return segment(part, 0, parse_special, s, align, sink);
    const auto key = ClauseCache::Key::of(part.data(), part.size());
    int32_t* row = sink.out.room(ClauseCache::most_ids);
    if (size_t known = caches_.segments.find(key, hash, row)) return sink.out.finish(row + known);
    const size_t from = sink.out.size();
    const bool before = std::exchange(s.rewritten, false);
    segment(part, 0, parse_special, s, align, sink);
    const size_t made = sink.out.size() - from;
    if (!s.rewritten && made >= 1 && made <= ClauseCache::most_ids)
      caches_.segments.put(key, hash, sink.out.data() + from, made);
    s.rewritten |= before;
  }
  template <class Sink>
  void segment(std::string_view bytes, uint32_t base, bool parse_special, Scratch& s, bool align, Sink& sink) const {
    if constexpr (std::is_same_v<Sink, IdSink>) {
      if (marks_ && bytes.find(Bpe::mark) == std::string_view::npos)
        return spaced_words(bytes, base, {}, s, sink.out);
      if (plain_ascii_ && (s.ascii || is_ascii(bytes))) return planned(bytes, s, sink.out, s.readable);
    }
    const bool between =
        blanks_ && (std::is_same_v<Sink, IdSink> || !blanks_->strict);  // strict: blanks have offsets
    if (between && stretches_between_blanks(bytes, base, s, sink)) return;
    whole(bytes, base, parse_special, s, align, sink);
  }
  template <class Sink>
  [[gnu::noinline]] void whole(std::string_view bytes, uint32_t base, bool parse_special, Scratch& s, bool align,
                               Sink& sink) const {
    s.rewritten |= spans_.of() != CharSpans::Of::bytes;
    s.text.start(bytes, base, align, s.growth);
    normalizer_.apply(s.text, s.pre.normalizer);
    s.rewritten |= s.text.touched();
    uint32_t n = static_cast<uint32_t>(s.text.view().size());
    if (n == 0) return;
    if (normalized_.empty() || AddedMatcher::Search(normalized_, s.text.view()).next(0).token < 0) {
      if constexpr (std::is_same_v<Sink, IdSink>)
        if (plan_ && !marks_) return planned(s.text.view(), s, sink.out, s.text.touched() ? nullptr : s.readable);
      s.pre.pieces.assign(1, s.text.slice(0, n, base));
      return pieces(s.text, s, sink);
    }
    split_added(
        s.text.view(), normalized_, added_.tokens, parse_special,
        [&](uint32_t begin, uint32_t end) {
          s.part.start_slice(s.text, s.text.slice(begin, end, base));
          s.pre.pieces.assign(1, s.part.whole());
          pieces(s.part, s, sink);
        },
        [&](uint32_t begin, uint32_t end, int32_t token) {
          sink.added(&s.text, begin, end, s.text.view().substr(begin, end - begin),
                     added_.tokens[static_cast<size_t>(token)].id);
        });
  }

  // False, and nothing is put: the text has to be done as a whole. The ids of a stretch are a matter of its bytes,
  // and kept; some stretches are fetched before the first of them is looked at.
  [[gnu::noinline]] bool stretches_between_blanks(std::string_view text, uint32_t, Scratch& s, IdSink& sink) const {
    constexpr size_t most = 16;
    WordCaches::Text held[most];
    const size_t before = sink.out.size();
    const bool rewritten = s.rewritten;
    Blanks::Stretches stretches(*blanks_, text);
    bool done = true;
    for (size_t count = most; done && count == most;) {
      std::string_view next;
      for (count = 0; count < most && !(next = stretches.next()).empty(); ++count) {
        held[count].read(next.data(), next.size(), s.readable);
        caches_.fetch(held[count]);
      }
      done = count == most || stretches.is_done();
      for (size_t i = 0; i < count; ++i) caches_.meet(held[i]);
      for (size_t i = 0; done && i < count; ++i) {
        int32_t* const row = sink.out.room(ClauseCache::most_ids);
        const size_t from = sink.out.size(), known = caches_.find(held[i], row);
        sink.out.finish(row + known);
        if (known) continue;
        done = make_apart(held[i].text(), s, sink);
        if (done) caches_.put(held[i], sink.out.data() + from, sink.out.size() - from);
      }
    }
    s.rewritten = rewritten;  // CharSpans looks at the text
    if (!done) sink.out.finish(sink.out.data() + before);
    return done;
  }
  // A stretch is cut further at characters that are tokens by themselves, as they are.
  bool make_apart(std::string_view stretch, Scratch& s, IdSink& sink) const {
    const char *from = stretch.data(), *const end = from + stretch.size();
    const auto rest = [&](const char* to) {
      const std::string_view part(from, static_cast<size_t>(to - from));
      return part.empty() || make_between_blanks(part, 0, false, s, sink);
    };
    for (const char* p = from; cuts_own_ && p < end;) {
      const char* const at = p;
      p += utf8_length(static_cast<unsigned char>(*p));
      if (spans_.kind_at(at) != CharSpans::own) continue;
      if (!rest(at)) return false;
      model_.encode({at, static_cast<size_t>(p - at)}, s, sink);
      from = p;
    }
    return rest(end);
  }
  // The same for all columns, which no cache has.
  bool stretches_between_blanks(std::string_view text, uint32_t base, Scratch& s, ColumnSink& sink) const {
    const ColumnSink::Place before = sink.place();
    Blanks::Stretches stretches(*blanks_, text);
    bool done = true;
    for (std::string_view next; done && !(next = stretches.next()).empty();)
      done = make_between_blanks(next, base + static_cast<uint32_t>(next.data() - text.data()), true, s, sink);
    done = done && stretches.is_done();
    if (!done) sink.back_to(before);
    return done;
  }
  template <class Sink>
  bool make_between_blanks(std::string_view stretch, uint32_t base, bool align, Scratch& s, Sink& sink) const {
    const char* const end = stretch.data() + stretch.size();
    const bool plain = plain_.span(stretch.data(), end, [] {}) == end;
    s.text.start(stretch, base, align, s.growth);
    if (!plain && !normalizer_.apply_between(*blanks_, s.text, s.pre.normalizer)) return false;
    if (align && s.text.touched() && normalizer_.has_charsmap()) return false;  // it may shift what comes behind
    const std::string_view v = s.text.view();
    if (v.empty()) return true;
    const Piece whole = s.text.slice(0, v.size(), base);
    if (puts_mark_ && (plain || blanks_->has_none(v))) {
      s.word.assign(pre_.mark()).append(v);
      sink.begin(s.text, whole, static_cast<uint32_t>(pre_.mark().size()));
      model_.encode(s.word, s, sink);
      sink.end();
    } else {
      s.pre.pieces.assign(1, whole);
      pieces(s.text, s, sink);
    }
    return true;
  }

  // readable: the end of the readable bytes; null: the text's.
  void planned(std::string_view text, Scratch& s, IdBuffer& out, const char* readable = nullptr) const {
    WordWriter words(model_.bpe, model_.vocab, caches_, s.bpe, out, false);
    cut_(*plan_, text, readable ? readable : text.data() + text.size(), {}, words);
    words.finish();
  }

  // A text without marks, read as if it had one in the place of each space, and before it where the file says so.
  // base: where it begins in the caller's text. stops: places in this text, in order.
  void spaced_words(std::string_view bytes, uint32_t base, std::span<Stop> stops, Scratch& s, IdBuffer& out) const {
    WordWriter words(model_.bpe, model_.vocab, caches_, s.bpe, out, true);
    const std::string_view before_stops = stops.empty() ? bytes : bytes.substr(0, stops[0].begin);
    size_t done = 0;
    if (!before_stops.empty() && marks_->puts_before(before_stops, base)) {
      done = plan_->first_word(before_stops);
      s.first_word.assign(1, ' ').append(before_stops.substr(0, done));
      const size_t first = plan_->first_word(s.first_word);  // all of it, or the space alone
      words.any(s.first_word.data(), first);
      if (first == 1) words.any(s.first_word.data() + 1, done);
      for (Stop& stop : stops) stop.begin -= done, stop.end -= done;
    }
    if (done < bytes.size()) cut_(*plan_, bytes.substr(done), bytes.data() + bytes.size(), stops, words);
    words.finish();
  }

  template <class Sink>
  void pieces(Text& text, Scratch& s, Sink& sink) const {
    if constexpr (std::is_same_v<Sink, IdSink>) {
      if (plan_ && !marks_) return planned(text.view(), s, sink.out);
    }
    pre_.apply(text, s.pre);
    s.rewritten |= text.touched();
    for (const Piece& p : s.pre.pieces) {
      std::string_view v = text.view().substr(p.begin, p.end - p.begin);
      sink.begin(text, p);
      model_.encode(v, s, sink);
      sink.end();
    }
  }

  // ---- loading, in loading.cpp

  void load(const Json& root);
  void tables(auto& io) {
    io(model_.vocab, model_.bpe, model_.word_piece, model_.unigram, trims_, special_, token_bytes_, spans_, plain_);
  }
  void plan();
  void plan_blanks();
  void plan_cuts();
  bool plan_spans();
  std::optional<SpaceMarks> read_marks() const;
  void read_post(const Json& json);
  // Bytes of all added tokens, as the file has them and as they are normalized: their automaton takes a hundred times
  // as many while it is made.
  static constexpr size_t most_added = size_t{1} << 22;
  void index_added();
  void index_ids();
  void index_bytes();
  void index_spans();
  void index_wide_spans();

  std::shared_ptr<const TableContent> content_;  // the memory that the tables are views of, if they were read
  Model model_;
  Normalizer normalizer_;
  PreTokenizer pre_;
  Decoder decoder_;
  AddedReader added_;
  std::unordered_map<uint32_t, std::string> shown_;  // the texts that differ from the content of an added token
  AddedMatcher raw_, normalized_;
  std::vector<bool> trim_passes_;
  TableArray<Trim> trims_;
  TableArray<uint8_t> special_;
  TokenBytes token_bytes_;
  // When decodes_apart(): the part that a text loses if it begins with it; whether the first token's text is another.
  std::optional<uint32_t> leading_;
  bool first_apart_ = false;
  std::map<std::string, std::string> sections_;
  std::string model_settings_;
  bool needs_align_ = false, tables_known_ = false;
  std::unique_ptr<SplitPlan> plan_;
  CutWords cut_ = nullptr;
  std::optional<SpaceMarks> marks_;  // where the kernel cuts such a text
  bool plain_ascii_ = false;         // whether ASCII is cut as it is
  std::optional<Blanks> blanks_;     // where a text is cut at them
  bool cuts_own_ = false;            // whether a stretch is cut at CharSpans::own
  bool puts_mark_ = false;           // whether a stretch without white space becomes one piece, a mark before it
  enum class Cuts : uint8_t { none, words, marks, letters } cuts_ = Cuts::none;
  std::array<bool, 256> strips_behind_{};  // the last bytes of added tokens that take the white space behind them
  WordCaches caches_;
  CharSpans spans_;
  BmpSet plain_;  // what no normalizer changes between blanks, and no space
};

}  // namespace fasttoken
