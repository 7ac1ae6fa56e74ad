// Encodes and decodes recorded strings and compares with the recorded results; for the sanitizers and for callgrind.
//
//   check_corpus FOLDER [--threads N]     each NAME.json beside NAME.corpus, written by
//   tests/dump_tokenizer_corpus.py
//
//   With threads, all of them go through each tokenizer's whole corpus at once, from different places.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>

#include "vocab/stream.hpp"

using namespace fasttoken;

namespace {

struct Record {
  bool parse_special;
  std::string_view text, decoded;
  std::vector<int32_t> ids;
  std::vector<uint32_t> offsets;
};

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

class Records {
 public:
  explicit Records(std::string data) : data_(std::move(data)) {
    while (at_ < data_.size()) {
      Record r;
      r.parse_special = number() != 0;
      r.text = bytes(number());
      uint32_t n = number();
      for (uint32_t i = 0; i < n; ++i) r.ids.push_back(static_cast<int32_t>(number()));
      for (uint32_t i = 0; i < 2 * n; ++i) r.offsets.push_back(number());
      r.decoded = bytes(number());
      all.push_back(std::move(r));
    }
  }
  std::vector<Record> all;

 private:
  std::string_view bytes(size_t n) {
    if (n > data_.size() - at_) throw std::runtime_error("the corpus ends within a record");
    at_ += n;
    return std::string_view(data_).substr(at_ - n, n);
  }
  uint32_t number() {
    uint32_t value;
    std::memcpy(&value, bytes(4).data(), 4);
    return value;
  }
  std::string data_;
  size_t at_ = 0;
};

// The name of the difference, or null.
const char* differs(const Tokenizer& t, const Record& r) {
  Scratch& s = Tokenizer::scratch();
  std::vector<int32_t> ids;
  t.encode_ids(r.text, r.parse_special, s, ids);
  if (ids != r.ids) return "ids";
  Encoded e;
  t.encode(r.text, r.parse_special, s, e);
  to_characters(r.text, e.offsets);
  t.trim(e.ids.data(), e.ids.size(), e.added, 0, e.offsets.data());
  if (e.ids != r.ids) return "ids with offsets";
  for (size_t i = 0; i < e.offsets.size(); ++i)
    if (e.offsets[i].begin != r.offsets[2 * i] || e.offsets[i].end != r.offsets[2 * i + 1]) return "offsets";
  std::vector<uint32_t> column(ids.begin(), ids.end());
  if (t.decode(column, false, s) != r.decoded) return "decoded text";
  if (!t.decodes_bytes()) return nullptr;
  DecodeStream stream(&t, {}, false);
  std::string parts;
  for (uint32_t id : column)
    if (auto part = stream.step(std::vector<uint32_t>{id}, s)) parts += *part;
  return parts + stream.finish(s) == r.decoded ? nullptr : "the stream";
}

size_t check(const Tokenizer& t, const std::vector<Record>& records, size_t first, const std::string& name) {
  size_t found = 0;
  for (size_t i = 0; i < records.size(); ++i) {
    const Record& r = records[(first + i) % records.size()];
    const char* difference = nullptr;
    try {
      difference = differs(t, r);
    } catch (const TextError& error) {
      // HF has no bounds on the growth of a text.
      if (std::string_view(error.what()).find("longer than is allowed") == std::string_view::npos) throw;
    }
    if (!difference) continue;
    if (++found <= 3)
      std::fprintf(stderr, "%s: %s: %.*s\n", name.c_str(), difference, static_cast<int>(r.text.size()),
                   r.text.data());
  }
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && !(argc == 4 && std::string_view(argv[2]) == "--threads")) {
    std::fprintf(stderr, "usage: check_corpus FOLDER [--threads N]\n");
    return 2;
  }
  size_t threads = argc == 4 ? std::strtoul(argv[3], nullptr, 10) : 1, strings = 0;
  std::atomic<size_t> found = 0;
  std::set<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1]))
    if (entry.path().extension() == ".corpus") files.insert(entry.path());
  for (std::filesystem::path path : files) {
    Records records(read(path));
    std::string name = path.stem().string();
    Tokenizer tokenizer(read(path.replace_extension(".json")));
    std::vector<std::thread> pool;
    for (size_t i = 1; i < threads; ++i)
      pool.emplace_back([&, i] { found += check(tokenizer, records.all, i * records.all.size() / threads, name); });
    found += check(tokenizer, records.all, 0, name);
    for (std::thread& t : pool) t.join();
    strings += records.all.size();
  }
  std::printf("%zu tokenizers, %zu strings, %zu threads: %zu differences\n", files.size(), strings, threads,
              found.load());
  return files.empty() || found ? 1 : 0;
}
