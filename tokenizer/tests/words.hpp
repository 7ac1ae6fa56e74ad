// The common part of the tests of words: patterns of the families, files made at random, texts of shards, and the
// comparison of ids by the kernels with ids by the pieces of the pattern.
#pragma once

#include <cstdio>
#include <map>
#include <memory>
#include <random>

#include "check.hpp"
#include "tokenizer.hpp"

using namespace fasttoken;

inline const char* const gpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+)";
inline const char* const qwen =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|)"
    R"(\\s+(?!\\S)|\\s+)";
inline const char* const llama =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|)"
    R"(\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";
inline const char* const marks =
    R"([^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";
inline const char* const nemo =
    R"([^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|)"
    R"([^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}|)"
    R"( ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";
inline const char* const o200k =
    R"([^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";
// DeepSeek-V3's three, one a line.
inline const char* const deepseek =
    R"(\\p{N}{1,3})"
    "\n"
    R"([\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+)"
    "\n"
    R"([!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|)"
    R"( ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+)";

inline const char* const shards[] = {
    "a", "the", "The", "Hello", "HELLO", "helloWorld", "'s", "'S", "'ll", "'LL", "'Re", "'", "''", "don't",
    "'\xC5\xBF", "'sx", "1", "12", "123", "1234567", " ", "  ", "   ", "    ", "\n", "\n\n", "\r\n", " \n", "\n ",
    "\n  ", " \n \n", "\t", "\n\t\n ", ".", "...", "!\n", "!\n\n ", "/\n/", "\n/", ".\n/a", "/", "=", "==", "{}",
    "\"", "\x01", "\x7F", "\xC3\xA9", "\xC3\x89", "\xC3\x89t\xC3\xA9", "\xE4\xBD\xA0\xE5\xA5\xBD", "\xE3\x80\x82",
    "\xEF\xBC\x8C", "\xC2\xA0", "\xE3\x80\x80", "\xE2\x80\xA8", "\xC2\x85", "\xF0\x9F\x98\x80", "\xD9\xA3\xD9\xA4",
    "\xF0\x9D\x9F\x98", "\xCC\x81", "e\xCC\x81", "\xC2\xB2", "\xE2\x85\xA7", "\xC7\x85", "\xCA\xB0",
    "\xD0\x9F\xD1\x80", "\xED\x95\x9C",
    // The first and last characters of the ranges whose first byte says that they are letters.
    "\xE3\xBF\xBF", "\xE4\xB6\xBF", "\xE4\xB7\x80", "\xE4\xB7\xBF", "\xE4\xB8\x80", "\xE9\xBF\xBF", "\xEA\x80\x80",
    "\xEC\xBF\xBF", "\xED\x9F\xBF", "\xD0\x80", "\xD1\xBF", "\xD2\x82", "\xDF\xBF", "\xE1\x80\x80", "\xE9\xBD\xBF",
    "\xE9\xBE\x80", "\xE9\xBE\xA5", "\xE9\xBE\xA6",
    // Kana, a dot and a mark among them, and characters that are none of these.
    "\xE3\x82\xB9\xE3\x82\xBF\xE3\x83\xBC", "\xE3\x83\xBB", "\xE3\x82\x99", "\xE3\x81\x80", "\xE3\x82\x9B", "n't",
    "X'llY", "'lL", "a'd'd'm", "!ab\xC3\xA9", "\xE2\x80\x8B", "_", "-"};

inline std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (char c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\')
      out.append("\\u00").append(1, "0123456789abcdef"[c >> 4]).append(1, "0123456789abcdef"[c & 15]);
    else
      out += c;
  return out + "\"";
}

// Every byte, and merges of two tokens each, made at random. Several patterns: one a line. wide: characters of three
// bytes, of which alone tokens are made then, and beside which stand parts of U+4E80.
inline std::string file(const char* pattern, uint32_t seed, std::string_view wide = {}) {
  std::mt19937 random(seed);
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) utf8_append(tokens.emplace_back(), byte_level_char(static_cast<unsigned char>(b)));
  std::string merges;
  std::map<std::string, bool> known;
  const std::string common = "etaoins'hrdl 0123\n./";
  auto merge = [&](const std::string& a, const std::string& b) {
    if (!known.try_emplace(a + b).second) return;
    tokens.push_back(a + b);
    merges += (merges.empty() ? "[" : ",[") + quoted(a) + "," + quoted(b) + "]";
  };
  const auto byte = [](char b) {
    std::string out;
    utf8_append(out, byte_level_char(static_cast<unsigned char>(b)));
    return out;
  };
  std::vector<std::string> whole;
  const auto any = [&] { return whole[random() % whole.size()]; };
  for (size_t i = 0; i < wide.size(); i += 3) {
    merge(byte(wide[i]), byte(wide[i + 1]));
    merge(byte(wide[i]) + byte(wide[i + 1]), byte(wide[i + 2]));
    whole.push_back(tokens.back());
  }
  for (int i = 0; i < 30 && !wide.empty(); ++i) {
    if (i == 10) merge(byte('\x80'), any());
    if (i == 15) merge(any(), byte('\xE4'));
    if (i == 20) merge(byte('\xBA'), byte('\x80'));
    if (i == 25) merge(byte('\xBA') + byte('\x80'), any());
    merge(any(), any());
    whole.push_back(tokens.back());
  }
  // Any two bytes that may stand beside each other are a token in one file or another, so that a cut between them
  // shows.
  for (const char* x : shards)
    for (const char* y : shards) {
      if (!wide.empty()) break;
      const std::string both = std::string(x) + y;
      const size_t at = random() % (both.size() - 1);
      merge(byte(both[at]), byte(both[at + 1]));
    }
  for (size_t most = tokens.size() + (wide.empty() ? 600 : 0); tokens.size() < most;) {
    const auto pick = [&] {
      return random() % 3 ? tokens[random() % tokens.size()] : byte(common[random() % common.size()]);
    };
    merge(pick(), pick());
  }
  std::string vocab;
  for (size_t i = 0; i < tokens.size(); ++i) vocab += (i ? "," : "") + quoted(tokens[i]) + ":" + std::to_string(i);
  std::string splits;
  for (const std::string& one : split(pattern, '\n'))
    splits += R"({"type":"Split","pattern":{"Regex":")" + one + R"("},"behavior":"Isolated","invert":false},)";
  return R"({"version":"1.0","normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"Sequence","pretokenizers":[)" +
         splits + R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false}]},
    "model":{"type":"BPE","vocab":{)" +
         vocab + "},\"merges\":[" + merges + "]}}";
}

inline std::string text(std::mt19937& random, size_t bytes) {
  std::string out;
  size_t pool = random() % 4 ? std::size(shards) : 12 + random() % 20, from = random() % (std::size(shards) - 8);
  while (out.size() < bytes) {
    const char* one = random() % 3 ? shards[random() % pool] : shards[from + random() % 8];
    for (size_t n = random() % 12 ? 1 : random() % 40; n > 0; --n) out += one;
    if (random() % 20 == 0) out += one;
  }
  return out;
}

inline bool same(const Tokenizer& t, Scratch& s, const std::string& from) {
  const auto exact = std::make_unique<char[]>(from.size());  // a sanitizer sees each read behind it
  std::copy(from.begin(), from.end(), exact.get());
  const std::string_view one(exact.get(), from.size());
  Encoded e;
  std::vector<int32_t> ids;
  t.encode(one, true, s, e);
  for (int again = 0; again < 4; ++again) {  // the second time out of the caches, or the third
    ids.clear();
    t.encode_ids(one, true, s, ids);
    if (ids != e.ids) break;
  }
  if (ids == e.ids) return true;
  size_t i = 0;
  while (i < ids.size() && i < e.ids.size() && ids[i] == e.ids[i]) ++i;
  std::printf("differs at id %zu (byte %u) of %zu bytes: %s\n", i, i < e.ids.size() ? e.offsets[i].begin : 0,
              one.size(), from.substr(i < e.ids.size() ? e.offsets[i].begin / 16 * 16 : 0, 60).c_str());
  return false;
}
