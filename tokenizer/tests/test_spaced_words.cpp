// Files without a pattern, which mark spaces: ids by the kernel against ids by the pieces, for every way of marking
// and set of instructions.
#include "words.hpp"

namespace {

// Spaces become U+2581, in one of these ways.
const char* const marking[] = {
    R"("normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"\u2581"},
      {"type":"Replace","pattern":{"String":" "},"content":"\u2581"}]})",
    R"("normalizer":{"type":"Replace","pattern":{"String":" "},"content":"\u2581"},"pre_tokenizer":{"type":"Split",
      "pattern":{"String":" "},"behavior":"MergedWithPrevious","invert":false})",
    R"("pre_tokenizer":{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"first","split":false})",
    R"("pre_tokenizer":{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"always","split":true})",
    R"("pre_tokenizer":{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"never","split":false})"};

// No pattern: spaces are marked; bytes for characters without a token. all_bytes: of each value; else a mark is in no
// merge behind another symbol.
std::string spaced_file(uint32_t seed, const char* way, bool all_bytes) {
  std::mt19937 random(seed);
  const std::string mark(Bpe::mark);
  std::vector<std::string> tokens = {"?"}, parts = {mark, "a", "b", "e", "t", ".", "\xC3\xA9", "\xE4\xBD\xA0"};
  for (int b = 0; b < 256; ++b) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", b);
    if (all_bytes || b % 7 || b < 128) tokens.push_back(name);
  }
  std::map<std::string, bool> known;
  for (auto& part : parts) known[part] = true;
  std::string merges;
  while (parts.size() < 200) {
    std::string a = parts[random() % parts.size()], b = parts[random() % parts.size()];
    bool marks_only = (a + b).find_first_not_of(mark) == std::string::npos,
         cut_before = b.find(mark) != std::string::npos;
    if (cut_before && !marks_only && !(all_bytes && random() % 100 == 0)) continue;
    if (a.ends_with(".") && b.starts_with("b")) continue;  // some pairs beside the marks join nowhere
    if (!known.try_emplace(a + b).second) continue;
    parts.push_back(a + b);
    merges += (merges.empty() ? "[" : ",[") + quoted(a) + "," + quoted(b) + "]";
  }
  tokens.insert(tokens.end(), parts.begin(), parts.end());
  std::string vocab;
  for (size_t i = 0; i < tokens.size(); ++i) vocab += (i ? "," : "") + quoted(tokens[i]) + ":" + std::to_string(i);
  std::string added;
  for (const char* content :
       {"<s>", "\\n", "\\n\\n", "<a long one; of more bytes than a block of the kernel has; and then some>"}) {
    const bool special = content[1] == 's';
    added += (added.empty() ? "" : ",") + std::string(R"({"id":)") +
             std::to_string(special ? 0 : 1000 + added.size()) + R"(,"content":")" + content +
             R"(","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,)" + R"("special":)" +
             (special ? "true}" : "false}");
  }
  return R"({"version":"1.0","added_tokens":[)" + added + "]," + way +
         R"(,"model":{"type":"BPE","unk_token":"?","fuse_unk":true,"byte_fallback":true,"vocab":{)" + vocab +
         "},\"merges\":[" + merges + "]}}";
}

void spaced_words_equal_pieces() {
  each_isa([&] {
    for (uint32_t seed = 0; seed < 2 * std::size(marking); ++seed) {
      Tokenizer t(spaced_file(seed, marking[seed / 2], seed % 2));
      CHECK(t.cuts_by_kernel());
      std::mt19937 random(seed);
      Scratch s;
      bool equal = true;
      const std::vector<std::string> more = split(
          " ,  ,a,the, abet,tea,.,\xC3\xA9,\xE4\xBD\xA0,<s>,\n,\xF0\x9F\x98\x80,\xE2\x96\x81,beat,.b,"
          "<a long one; of more bytes than a block of the kernel has; and then some>",
          ',');
      for (int round = 0; equal && round < rounds(250); ++round) {
        std::string one;
        for (size_t n = random() % 60; n > 0; --n) {
          size_t which = random() % more.size();
          if (which == 12 && round % 5) continue;
          for (size_t k = random() % 30 ? 1 : random() % 90; k > 0; --k) one += more[which];
        }
        equal = same(t, s, one);
      }
      CHECK(equal);
    }
  });
}

}  // namespace

int main() {
  spaced_words_equal_pieces();
  return finish("spaced words");
}
