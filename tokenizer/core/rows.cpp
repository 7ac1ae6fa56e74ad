#include "rows.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <thread>

namespace fasttoken {

namespace {

constexpr size_t bytes_a_thread = size_t{1} << 17;   // fewer are not worth a thread
constexpr uint64_t most_tokens = uint64_t{1} << 26;  // of all rows; 64 count for a row itself

// HF's variable switches its threads off.
bool may_use_threads() {
  const char* set = std::getenv("TOKENIZERS_PARALLELISM");
  if (!set) return true;
  const std::string_view value = set;
  return !(value == "0" || value == "false" || value == "False" || value == "FALSE" || value == "off" ||
           value == "no" || value == "n" || value == "f");
}

}  // namespace

// ---- texts

bool Rows::encode(const RowText& text, Chunk& chunk) const {
  std::string_view utf8 = text.utf8;
  if (!utf8.data()) {
    utf8 = chunk.ids.utf8(text.characters, text.count, text.width);
    if (!utf8.data()) return false;
  }
  const size_t before = chunk.ids.size();
  const bool placed = core_.encode_ids(utf8, parse_special_, chunk.ids.ids(), text.ascii);
  if (content_ == RowContent::ids) return true;
  const size_t n = chunk.ids.size() - before;
  chunk.offsets.resize(before + n);
  Align* const offsets = chunk.offsets.data() + before;
  if (content_ == RowContent::offsets && placed &&
      core_.char_spans(chunk.ids.data() + before, n, text.count, utf8, text.ascii, false, offsets))
    return true;
  Encoded found;
  core_.encode(utf8, parse_special_, true, false, found);
  if (found.ids.size() != n) return false;
  std::copy(found.offsets.begin(), found.offsets.end(), offsets);
  if (text.word >= 0) std::fill(found.words.begin(), found.words.end(), text.word);
  chunk.words.insert(chunk.words.end(), found.words.begin(), found.words.end());
  for (Encoded::Added& added : found.added) {
    added.index += static_cast<uint32_t>(before);
    chunk.added.push_back(std::move(added));
  }
  return true;
}

bool Rows::encode(const RowText* texts, const RowSample* from, const RowSample* to, Sequence* out,
                  Chunk& chunk) const {
  for (; from != to; ++from)
    for (int64_t count : {from->first, from->second}) {
      const size_t begin = chunk.ids.size();
      for (int64_t i = 0; i < count; ++i)
        if (!encode(*texts++, chunk)) return false;
      *out++ = {&chunk, begin, chunk.ids.size() - begin};
    }
  return true;
}

bool Rows::encode(const std::vector<RowText>& texts, const std::vector<RowSample>& samples) {
  samples_ = samples;
  sequences_.resize(2 * samples.size());
  size_t bytes = 0;
  for (const RowText& text : texts) bytes += text.utf8.data() ? text.utf8.size() : 2 * text.count;
  size_t threads = std::min(bytes / bytes_a_thread, samples.size());
  if (threads > 1) threads = std::min<size_t>(threads, std::thread::hardware_concurrency());
  if (threads < 2 || !may_use_threads()) {
    chunks_.emplace_back();
    return encode(texts.data(), samples.data(), samples.data() + samples.size(), sequences_.data(), chunks_[0]);
  }
  // A thread takes the next few samples that are left.
  std::vector<size_t> first_text(samples.size() + 1);
  for (size_t i = 0; i < samples.size(); ++i)
    first_text[i + 1] =
        first_text[i] + static_cast<size_t>(samples[i].first + std::max<int64_t>(samples[i].second, 0));
  const size_t few = (samples.size() + threads * 4 - 1) / (threads * 4);
  chunks_.resize((samples.size() + few - 1) / few);
  std::atomic<size_t> next{0};
  std::atomic<bool> known{true};
  std::vector<std::exception_ptr> errors(threads);
  auto work = [&](size_t thread) {
    try {
      for (size_t i; (i = next++) < chunks_.size();) {
        const size_t from = i * few, to = std::min(from + few, samples.size());
        if (!encode(texts.data() + first_text[from], samples.data() + from, samples.data() + to,
                    sequences_.data() + 2 * from, chunks_[i]))
          known = false;
      }
    } catch (...) {
      errors[thread] = std::current_exception();
    }
  };
  std::vector<std::thread> pool;
  try {
    for (size_t i = 1; i < threads; ++i) pool.emplace_back(work, i);
  } catch (const std::system_error&) {
    // The threads that there are do the work.
  }
  work(0);
  for (std::thread& thread : pool) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  return known;
}

// ---- rows

bool Rows::cut(size_t size, uint64_t kept, const RowCut& rule, Kept& out) {
  if (kept >= size) {
    out.stays = {0, static_cast<uint32_t>(size), false};
    return true;
  }
  if (kept == 0) {
    out.stays = {};
    if (rule.keeps_rest) out.rest.push_back({0, static_cast<uint32_t>(size), true});
    return true;
  }
  if (rule.stride >= kept) return false;
  const uint64_t step = kept - rule.stride;
  if (((size - rule.stride) / step + 1) * (kept + 64) > most_tokens) return false;
  if (!rule.keeps_rest) {
    out.stays = {static_cast<uint32_t>(rule.left ? size - kept : 0), static_cast<uint32_t>(kept), false};
    return true;
  }
  for (size_t at = 0; at < size; at += step) {
    const size_t end = std::min<size_t>(at + kept, size);
    const Part part{static_cast<uint32_t>(rule.left ? size - end : at), static_cast<uint32_t>(end - at), at > 0};
    if (at > 0)
      out.rest.push_back(part);
    else
      out.stays = part;
    if (end == size) break;
  }
  return true;
}

bool Rows::cut(size_t sample, const RowCut& rule, Kept* out) const {
  const bool pair = samples_[sample].second >= 0;
  const size_t first = sequences_[2 * sample].size, second = pair ? sequences_[2 * sample + 1].size : 0;
  const uint64_t limit = rule.max_length - rule.added[pair];  // it wraps, as HF's does
  const uint64_t total = first + second;
  uint64_t kept[2] = {first, second};
  if (rule.strategy == RowCut::none || (limit != 0 && total <= limit)) {
    // all of them
  } else if (limit == 0) {
    kept[0] = kept[1] = 0;
  } else if (rule.strategy == RowCut::longest_first) {
    if (!pair) {
      kept[0] = limit;
    } else {
      uint64_t less = std::min(first, second), more = less > limit ? less : std::max(less, limit - less);
      if (less + more > limit) {
        less = limit / 2;
        more = less + limit % 2;
      }
      kept[0] = first > second ? more : less;
      kept[1] = first > second ? less : more;
    }
  } else {
    const size_t of = rule.strategy == RowCut::only_second;
    if (of && !pair) return false;
    if (kept[of] <= total - limit) return false;
    kept[of] -= total - limit;
  }
  return cut(first, kept[0], rule, out[0]) && (!pair || cut(second, kept[1], rule, out[1]));
}

void Rows::add(size_t sample, const RowLayout& layout, const Part& first, const Part& second) {
  Row row{&layout, static_cast<uint32_t>(sample), {first, second}, 0, 0};
  for (const RowPiece& piece : layout)
    row.size += piece.sequence < 0 ? piece.ids.size() : row.parts[piece.sequence].size;
  rows_.push_back(row);
}

bool Rows::cut(const RowLayout& single, const RowLayout& pair, const RowCut& rule, const RowPadding& padding) {
  uint64_t tokens = 0;
  size_t longest = 0;  // parts that were cut off do not count
  for (size_t i = 0; i < samples_.size(); ++i) {
    const RowLayout& layout = samples_[i].second >= 0 ? pair : single;
    Kept kept[2];
    if (!cut(i, rule, kept)) return false;
    const size_t before = rows_.size();
    auto add_row = [&](const Part& first, const Part& second) {
      add(i, layout, first, second);
      return (tokens += rows_.back().size + 64) <= most_tokens || rows_.size() == before + 1;
    };
    add_row(kept[0].stays, kept[1].stays);
    longest = std::max(longest, rows_.back().size);
    for (const Part& first : kept[0].rest) {
      if (!add_row(first, kept[1].stays)) return false;
      for (const Part& second : kept[1].rest)
        if (!add_row(first, second)) return false;
    }
    for (const Part& second : kept[1].rest)
      if (!add_row(kept[0].stays, second)) return false;
  }
  pad(padding, longest);
  return true;
}

void Rows::pad(const RowPadding& padding, size_t longest) {
  padding_ = padding;
  if (padding.kind != RowPadding::none) {
    padded_to_ = padding.kind == RowPadding::fixed ? padding.length : longest;
    if (padding.multiple && padded_to_ % padding.multiple)
      padded_to_ += padding.multiple - padded_to_ % padding.multiple;
  }
  for (Row& row : rows_) {
    row.length = std::max(row.size, padded_to_);
    longest_ = std::max(longest_, row.length);
    total_ += row.length;
    equal_ &= row.length == rows_[0].length;
  }
}

// ---- columns

const std::string* Rows::text(size_t row, int number, size_t token) const {
  const auto& added = sequence(row, number).chunk->added;
  const auto found = std::ranges::lower_bound(added, first(row, number) + token, {}, &Encoded::Added::index);
  return found != added.end() && found->index == first(row, number) + token ? &found->text : nullptr;
}

template <class T>
void Rows::put(RowColumn column, T* out) const {
  const bool offsets = column == RowColumn::offsets, words = column == RowColumn::words;
  const T pad = static_cast<T>(column == RowColumn::ids     ? padding_.id
                               : column == RowColumn::types ? padding_.type
                               : words                      ? -1
                                                            : column == RowColumn::special);
  std::vector<Align> trimmed;
  for (const Row& row : rows_) {
    const size_t missing = (row.length - row.size) * (offsets ? 2 : 1);
    if (padding_.left) out = std::fill_n(out, missing, pad);
    for (const RowPiece& piece : *row.layout) {
      const bool own = piece.sequence < 0;
      const Part part = own ? Part{0, static_cast<uint32_t>(piece.ids.size())} : row.parts[piece.sequence];
      const Sequence text = own ? Sequence{} : sequences_[2 * row.sample + static_cast<size_t>(piece.sequence)];
      const size_t from = text.begin + part.begin;
      if (column == RowColumn::ids || (words && !own)) {
        const int32_t* all = own ? piece.ids.data() : words ? text.chunk->words.data() : text.chunk->ids.data();
        out = std::copy_n(all + (own ? 0 : from), part.size, out);
      } else if (!offsets || own) {
        const int64_t value = column == RowColumn::types       ? (part.rest ? piece.rest_type : piece.type)
                              : column == RowColumn::attention ? 1
                              : words                          ? -1
                                                               : own && !offsets;
        out = std::fill_n(out, size_t{part.size} * (offsets ? 2 : 1), static_cast<T>(value));
      } else {
        const auto all = text.chunk->offsets.begin() + static_cast<ptrdiff_t>(from);
        trimmed.assign(all, all + part.size);
        core_.trim_part(text.chunk->ids.data() + from, part.size, text.chunk->added, from, trimmed.data());
        for (const Align& one : trimmed) {
          *out++ = static_cast<T>(one.begin);
          *out++ = static_cast<T>(one.end);
        }
      }
    }
    if (!padding_.left) out = std::fill_n(out, missing, pad);
  }
}

template void Rows::put(RowColumn, int32_t*) const;
template void Rows::put(RowColumn, int64_t*) const;

}  // namespace fasttoken
