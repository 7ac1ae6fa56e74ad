// Reading the model and the added tokens of a tokenizer.json into tables.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "bpe/bpe.hpp"
#include "loading/json.hpp"
#include "model.hpp"
#include "split/added.hpp"
#include "vocab/unigram.hpp"
#include "vocab/vocab.hpp"
#include "vocab/wordpiece.hpp"

namespace fasttoken {

class ModelReader {
 public:
  // tables_known: the vocabulary and the merges are in the model already.
  ModelReader(const Json& json, Model& model, bool tables_known)
      : json_(json), model_(model), tables_known_(tables_known) {}

  void read() {
    std::string type = kind();
    if (type == "BPE") {
      read_vocab();
      read_bpe();
    } else if (type == "WordPiece" || type == "WordLevel") {
      read_vocab();
      model_.kind = ModelKind::word_piece;
      WordPiece& w = model_.word_piece;
      w.whole_words = type == "WordLevel";
      w.unknown = json_.need("unk_token").string();
      if (!w.whole_words) {
        w.prefix = json_.need("continuing_subword_prefix").string();
        w.max_characters = json_.need("max_input_chars_per_word").integer();
      }
    } else if (type == "Unigram") {
      read_unigram();
    } else {
      throw Unsupported("the model " + type, json_.path());
    }
  }

  // Its members but the two long lists, as JSON.
  std::string settings() const {
    std::string out = "{\"type\":\"" + kind() + "\",\"vocab\":{},\"merges\":[]";
    const JsonDocument& doc = json_.document();
    for (uint32_t i = 0, at = json_.first(); i < json_.size(); ++i, at = doc.past(at + 1))
      if (std::string_view name = doc.string(at); name != "type" && name != "vocab" && name != "merges")
        out.append(",").append(doc.source(at)).append(":").append(doc.source(at + 1));
    return out + "}";
  }

 private:
  std::string kind() const {
    if (auto type = json_.get("type")) return std::string(type->string());
    if (json_.find("merges")) return "BPE";
    auto vocab = json_.find("vocab");
    if (vocab && vocab->kind() == JsonKind::array) return "Unigram";
    return json_.find("max_input_chars_per_word") ? "WordPiece" : "WordLevel";
  }

  // Of n tokens, `apart` values from one to the next. The memory that add() reads first is fetched ahead.
  class HashesAhead {
   public:
    HashesAhead(const Vocab& vocab, const JsonDocument& doc, uint32_t at, uint32_t n, uint32_t apart)
        : vocab_(vocab), doc_(doc), at_(at), end_(at + n * apart), apart_(apart) {}
    uint64_t next() {
      for (; at_ != end_ && made_ - taken_ < ahead_.size(); ++made_, at_ += apart_)
        vocab_.prefetch(ahead_[made_ % ahead_.size()] = vocab_.hash(doc_.string(at_)));
      return ahead_[taken_++ % ahead_.size()];
    }

   private:
    const Vocab& vocab_;
    const JsonDocument& doc_;
    uint32_t at_, made_ = 0, taken_ = 0;
    const uint32_t end_, apart_;
    std::array<uint64_t, 8> ahead_;
  };

  void read_vocab() {
    if (tables_known_) return;
    Json vocab = json_.need("vocab");
    if (vocab.kind() != JsonKind::object) vocab.fail("expected an object");
    const JsonDocument& doc = vocab.document();
    uint32_t n = vocab.size(), at = vocab.first();
    size_t bytes = 0;
    for (uint32_t i = 0; i < n; ++i, at += 2) {
      bytes += doc.string(at).size();
      if (doc.kind(at + 1) != JsonKind::number) fail(vocab, doc.string(at), "expected an id");
    }
    if (bytes >= UINT32_MAX) vocab.fail("more than 4 GB of tokens");
    model_.vocab.reserve(n, bytes);
    // Tables by id have as many entries as the largest id says.
    const uint64_t limit = uint64_t{4} * n + sparse_here, most = uint64_t{4} * n + sparse_anywhere;
    at = vocab.first();
    HashesAhead hashes(model_.vocab, doc, at, n, 2);
    for (uint32_t i = 0; i < n; ++i, at += 2) {
      std::string_view token = doc.string(at), digits = doc.source(at + 1);
      uint64_t id = 0;
      for (char c : digits) {
        if (c < '0' || c > '9') fail(vocab, token, "not an id: " + std::string(digits));
        id = id * 10 + static_cast<uint64_t>(c - '0');
        if (id > UINT32_MAX) fail(vocab, token, "an id of more than 32 bits");
      }
      if (id >= most)
        fail(vocab, token,
             "the id " + std::string(digits) + ", of " + std::to_string(n) + " tokens; ids are taken below " +
                 std::to_string(most));
      if (id >= limit) throw Unsupported("very sparse token ids", entry(vocab, token));
      uint32_t small = static_cast<uint32_t>(id);
      if (model_.vocab.has(small) && model_.vocab.text(small) != token)
        throw Unsupported("two tokens with one id", entry(vocab, token));
      model_.vocab.add(token, small, hashes.next());
    }
  }

  static std::string entry(const Json& vocab, std::string_view token) {
    return vocab.path() + "[\"" + std::string(token) + "\"]";
  }
  [[noreturn]] static void fail(const Json& vocab, std::string_view token, const std::string& message) {
    throw FileError(entry(vocab, token), message);
  }

  void read_bpe() {
    BpeConfig& c = model_.bpe.config;
    if (auto dropout = json_.get("dropout")) {
      if (dropout->kind() != JsonKind::number) dropout->fail("expected a number");
      if (dropout->source().find_first_of("123456789") != std::string_view::npos)
        throw Unsupported("dropout", dropout->path());
    }
    if (auto prefix = json_.get("continuing_subword_prefix")) c.prefix = prefix->string();
    if (auto suffix = json_.get("end_of_word_suffix")) c.suffix = suffix->string();
    if (auto unknown = json_.get("unk_token")) {
      c.wants_unknown = true;
      c.unknown_text = unknown->string();
      c.unknown = model_.vocab.find(c.unknown_text);
    }
    c.fuse_unknown = json_.flag("fuse_unk", false);
    c.byte_fallback = json_.flag("byte_fallback", false);
    c.ignore_merges = json_.flag("ignore_merges", false);
    if (!tables_known_) read_merges();
  }

  // A model that HF may refuse, or read in more than one way, is left to HF.
  void read_unigram() {
    model_.kind = ModelKind::unigram;
    json_.each_pair([&](std::string_view name, const Json& value) {
      if (name != "type" && name != "vocab" && name != "unk_id" && name != "byte_fallback" && !tables_known_)
        throw Unsupported("this member of a Unigram", value.path());
    });
    Unigram& u = model_.unigram;
    auto unknown = json_.get("unk_id");
    if (!unknown) throw Unsupported("a Unigram without an unknown token", json_.path());
    u.byte_fallback = json_.flag("byte_fallback", false);
    if (!tables_known_) read_pieces();
    const uint64_t id = unknown->integer();
    if (id >= model_.vocab.end())
      throw Unsupported("an unknown token that is not in the vocabulary", unknown->path());
    u.unknown = static_cast<uint32_t>(id);
  }

  void read_pieces() {
    const Json vocab = json_.need("vocab");
    const auto leave = [&](const char* feature) { throw Unsupported(feature, vocab.path()); };
    if (vocab.kind() != JsonKind::array) leave("a vocabulary that is no list");
    const JsonDocument& doc = vocab.document();
    const uint32_t n = vocab.size();
    if (n > Unigram::most_tokens) leave("more than eight million tokens");
    size_t bytes = 0;
    uint32_t at = vocab.first();
    for (uint32_t i = 0; i < n; ++i, at = doc.past(at)) {
      if (doc.kind(at) != JsonKind::array || doc.count(at) != 2 || doc.kind(at + 1) != JsonKind::string ||
          doc.kind(at + 2) != JsonKind::number)
        leave("an entry that is no token and its score");
      if (doc.string(at + 1).size() > Unigram::longest) leave("a token of more than 512 bytes");
      bytes += doc.string(at + 1).size();
    }
    if (bytes >= UINT32_MAX) leave("more than 4 GB of tokens");
    model_.vocab.reserve(n, bytes);
    at = vocab.first();
    HashesAhead hashes(model_.vocab, doc, at + 1, n, 3);
    for (uint32_t i = 0; i < n; ++i, at = doc.past(at)) {
      if (model_.vocab.add(doc.string(at + 1), i, hashes.next())) leave("a token that is there twice");
      const std::optional<double> score = json_double(doc.source(at + 2));
      if (!score) leave("a score that no double holds");
      model_.unigram.add_score(*score);
    }
  }

  void read_merges() {
    Json merges = json_.need("merges");
    if (merges.kind() != JsonKind::array) merges.fail("expected an array");
    const JsonDocument& doc = merges.document();
    uint32_t n = merges.size(), at = merges.first();
    if (n > Merger::rank_limit) throw Unsupported("more than 33 million merges", "model.merges");
    Bpe& bpe = model_.bpe;
    bpe.merges.reserve(n, model_.vocab.end());
    bpe.in_order.reserve(n);
    bool repeated = false;
    const JsonKind shape = n ? doc.kind(at) : JsonKind::string;
    const size_t prefix = bpe.config.prefix.size();
    auto wrong = [&](uint32_t i, const std::string& message) {
      throw FileError(merges.path() + "[" + std::to_string(i) + "]", message);
    };
    // Many together, so that the memory of one is fetched while others are read.
    struct Side {
      std::string_view text;
      uint64_t hash;
      uint32_t id;
    };
    struct Pair {
      uint32_t place;
      std::array<Side, 2> sides;
    };
    std::array<Pair, 32> pairs;
    for (uint32_t i = 0, count = 0; i < n; count = 0) {
      for (; i < n && count < pairs.size(); ++i, at = doc.past(at)) {
        if (doc.kind(at) != shape) wrong(i, "pairs and strings are mixed");
        std::array<Side, 2>& sides = pairs[count].sides;
        if (shape == JsonKind::string) {
          const std::string_view pair = doc.string(at);
          if (pair.starts_with("#version")) continue;
          const size_t space = pair.find(' ');
          if (space == pair.npos || pair.find(' ', space + 1) != pair.npos)
            wrong(i, "expected two tokens and one space");
          sides[0].text = pair.substr(0, space);
          sides[1].text = pair.substr(space + 1);
        } else {
          if (shape != JsonKind::array || doc.count(at) != 2 || doc.kind(at + 1) != JsonKind::string ||
              doc.kind(at + 2) != JsonKind::string)
            wrong(i, "expected a pair of tokens");
          for (uint32_t k : {0, 1}) sides[k].text = doc.string(at + 1 + k);
        }
        for (Side& side : sides) model_.vocab.prefetch(side.hash = model_.vocab.hash(side.text));
        pairs[count++].place = i;
      }
      const std::span block(pairs.data(), count);
      for (const Pair& pair : block)
        for (const Side& side : pair.sides) model_.vocab.prefetch_text(side.hash);
      for (Pair& pair : block) {
        for (Side& side : pair.sides) {
          const std::optional<uint32_t> id = model_.vocab.find(side.text, side.hash);
          if (!id) wrong(pair.place, "the token " + std::string(side.text) + " is not in the vocabulary");
          side.id = *id;
        }
        bpe.merges.prefetch(pair.sides[0].id, pair.sides[1].id);
      }
      for (const auto& [place, sides] : block) {
        const auto& [a, b] = sides;
        if (b.text.size() < prefix) wrong(place, "the second token is shorter than the continuing prefix");
        const uint32_t whole = union_of(a.text, b.text.substr(prefix));
        if (whole == Vocab::hole) wrong(place, "their union " + joined_ + " is not in the vocabulary");
        const uint32_t rank = static_cast<uint32_t>(bpe.in_order.size());
        repeated |= !bpe.merges.add(a.id, b.id, rank, whole);
        bpe.in_order.push_back({a.id, b.id, rank, whole});
      }
    }
    if (repeated)
      std::erase_if(bpe.in_order, [&](const Merge& m) { return bpe.merges.find(m.a, m.b).rank != m.rank; });
  }

  // Files mostly have the tokens that merges make in the order of the merges, those that make one token together.
  uint32_t union_of(std::string_view a, std::string_view b) {
    const Vocab& vocab = model_.vocab;
    for (uint32_t probably : {last_, last_ + 1}) {
      if (!vocab.has(probably)) continue;
      std::string_view t = vocab.text(probably);
      if (t.size() == a.size() + b.size() && t.starts_with(a) && t.ends_with(b)) return last_ = probably;
    }
    joined_.assign(a).append(b);
    return last_ = vocab.find(joined_).value_or(Vocab::hole);
  }

  // How far past four times the number of tokens ids may go: in this core, and in any backend, which may need as
  // many bytes as four times the largest id.
  static constexpr uint64_t sparse_here = 4096, sparse_anywhere = 1 << 24;

  Json json_;
  Model& model_;
  std::string joined_;
  uint32_t last_ = Vocab::hole;  // of the last merge's token
  const bool tables_known_;
};

// The added tokens, with the ids HF gives them, which may differ from the file's. Of tokens with one id the last
// in the file counts.
class AddedReader {
 public:
  std::vector<AddedToken> tokens;                              // one for each id, in the order first added
  std::unordered_map<std::string, uint32_t> ids;               // content -> id
  std::unordered_map<uint32_t, size_t> by_id;                  // id -> index in tokens
  std::unordered_map<std::string, bool> special;               // contents skipped when decoding
  std::vector<std::pair<uint32_t, std::string>> to_normalize;  // id and content, also of tokens replaced since

  void read(const Json& json, const Vocab& vocab) {
    next_ = static_cast<uint32_t>(vocab.size());
    json.each([&](const Json& one) {
      AddedToken t;
      t.id = 0;
      one.need("id").integer();
      t.content = one.need("content").string();
      t.single_word = one.need("single_word").boolean();
      t.lstrip = one.need("lstrip").boolean();
      t.rstrip = one.need("rstrip").boolean();
      t.normalized = one.need("normalized").boolean();
      t.special = one.need("special").boolean();
      add(std::move(t), vocab);
    });
    for (AddedToken& t : tokens) t.once_special = special.count(t.content) != 0;
  }

 private:
  void add(AddedToken t, const Vocab& vocab) {
    if (t.content.empty()) return;
    if (auto known = ids.find(t.content); known != ids.end()) {
      t.id = known->second;
      if (tokens[by_id[t.id]] == t) return;
    } else if (auto found = vocab.find(t.content)) {
      t.id = *found;
    } else {
      t.id = next_++;  // may be another token's, where the vocabulary has holes; HF asks no further
    }
    ids[t.content] = t.id;
    if (t.special) special.try_emplace(t.content, true);
    if (t.normalized) to_normalize.push_back({t.id, t.content});
    auto [at, is_new] = by_id.try_emplace(t.id, tokens.size());
    if (is_new)
      tokens.push_back(std::move(t));
    else
      tokens[at->second] = std::move(t);
  }

  uint32_t next_ = 0;  // the id of the next token that the vocabulary does not have
};

}  // namespace fasttoken
