// The model written back as JSON, in the layout HF gives it: vocabulary by id, merges as pairs by rank, pieces with
// their scores.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "loading/loader.hpp"

namespace fasttoken {

inline void write_json_vocab(std::string& out, const Vocab& vocab) {
  out += "{";
  bool first = true;
  for (uint32_t id = 0; id < vocab.end(); ++id) {
    if (!vocab.has(id)) continue;
    if (!first) out += ',';
    first = false;
    write_json_string(out, vocab.text(id));
    out += ':';
    out += std::to_string(id);
  }
  out += "}";
}

inline std::string write_model(const Model& model) {
  std::string out;
  auto flag = [&](const char* name, bool on) { out.append(name).append(on ? "true" : "false"); };
  if (model.kind == ModelKind::word_piece) {
    const WordPiece& w = model.word_piece;
    out = w.whole_words ? "{\"type\":\"WordLevel\"" : "{\"type\":\"WordPiece\",\"unk_token\":";
    if (!w.whole_words) {
      write_json_string(out, w.unknown);
      out += ",\"continuing_subword_prefix\":";
      write_json_string(out, w.prefix);
      out += ",\"max_input_chars_per_word\":" + std::to_string(w.max_characters);
    }
    out += ",\"vocab\":";
    write_json_vocab(out, model.vocab);
    if (w.whole_words) {
      out += ",\"unk_token\":";
      write_json_string(out, w.unknown);
    }
    return out + "}";
  }
  if (model.kind == ModelKind::unigram) {
    out = "{\"type\":\"Unigram\",\"unk_id\":" + std::to_string(model.unigram.unknown) + ",\"vocab\":[";
    for (uint32_t id = 0; id < model.vocab.end(); ++id) {
      out += id ? ",[" : "[";
      write_json_string(out, model.vocab.text(id));
      out += ',';
      write_json_double(out, model.unigram.score(id));
      out += ']';
    }
    out += "]";
    flag(",\"byte_fallback\":", model.unigram.byte_fallback);
    return out + "}";
  }
  const BpeConfig& c = model.bpe.config;
  auto text = [&](const char* name, const std::optional<std::string>& value) {
    out += name;
    if (value)
      write_json_string(out, *value);
    else
      out += "null";
  };
  out = "{\"type\":\"BPE\",\"dropout\":";
  out += c.says_no_dropout ? "0.0" : "null";
  text(",\"unk_token\":", c.wants_unknown ? std::optional(c.unknown_text) : std::nullopt);
  text(",\"continuing_subword_prefix\":", c.has_prefix ? std::optional(c.prefix) : std::nullopt);
  text(",\"end_of_word_suffix\":", c.has_suffix ? std::optional(c.suffix) : std::nullopt);
  flag(",\"fuse_unk\":", c.fuse_unknown);
  flag(",\"byte_fallback\":", c.byte_fallback);
  flag(",\"ignore_merges\":", c.ignore_merges);
  out += ",\"vocab\":";
  write_json_vocab(out, model.vocab);
  const std::vector<Merge> merges = model.bpe.merges.in_order();
  out += ",\"merges\":[";
  for (size_t i = 0; i < merges.size(); ++i) {
    out += i ? ",[" : "[";
    write_json_string(out, model.vocab.text(merges[i].a));
    out += ',';
    write_json_string(out, model.vocab.text(merges[i].b));
    out += ']';
  }
  return out + "]}";
}

}  // namespace fasttoken
