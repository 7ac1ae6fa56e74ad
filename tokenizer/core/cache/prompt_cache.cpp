#include "cache/prompt_cache.hpp"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

namespace fasttoken {

struct PromptCache::Prompt {
  std::string text;
  std::vector<int32_t> ids;
  std::vector<Mark> marks;
  bool rewritten;
  mutable std::atomic<uint64_t> used;

  size_t bytes() const {
    return sizeof(Prompt) + text.size() + ids.size() * sizeof(int32_t) + marks.size() * sizeof(Mark);
  }
};

namespace {

// How many bytes at the beginnings of two texts of this length are the same.
size_t same_bytes(const char* a, const char* b, size_t n) {
  constexpr size_t block = 1024;
  size_t at = 0;
  while (n - at >= block && std::memcmp(a + at, b + at, block) == 0) at += block;
  for (uint64_t x, y; n - at >= sizeof x; at += sizeof x) {
    std::memcpy(&x, a + at, sizeof x);
    std::memcpy(&y, b + at, sizeof y);
    if (x != y) break;
  }
  while (at < n && a[at] == b[at]) ++at;
  return at;
}

uint64_t mixed(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ b) * 0x9E3779B97F4A7C15u;
  return (x ^ x >> 32) * 0xD6E8FEB86659FD93u;
}

// Of where a mark is and of the bytes before it: a hint that the text up to it was met before.
uint64_t hint_of(std::string_view text, const PromptCache::Mark& mark) {
  uint64_t part[4];
  std::memcpy(part, text.data() + mark.end - sizeof part, sizeof part);
  return mixed(mixed(mark.end, mark.ids), part[0] ^ std::rotl(part[1], 17) ^ std::rotl(part[2], 31)) ^
         mixed(part[3], part[0]);
}

}  // namespace

const int32_t* PromptCache::Known::ids() const { return prompt->ids.data(); }

uint64_t PromptCache::first_bit(std::string_view text) {
  uint64_t first;
  std::memcpy(&first, text.data(), sizeof first);
  return uint64_t{1} << (mixed(first, 0) >> 58);
}

PromptCache::Known PromptCache::look(std::string_view text) const {
  std::shared_ptr<const List> list;
  {
    std::unique_lock held(lock_, std::try_to_lock);
    if (!held) return {};
    list = list_;
  }
  if (!list) return {};
  const std::shared_ptr<const Prompt>* best = nullptr;
  size_t same = 0;
  for (const std::shared_ptr<const Prompt>& prompt : *list) {
    const std::string& other = prompt->text;
    size_t n = std::min(text.size(), other.size());
    if (n <= same || other[same] != text[same]) continue;  // no more than are the same with the best
    size_t found = same_bytes(text.data(), other.data(), n);
    if (found <= same) continue;
    same = found;
    best = &prompt;
    if (same == text.size()) break;
  }
  if (!best) return {};
  const Prompt& prompt = **best;
  Known known;
  if (same == text.size() && same == prompt.text.size()) {
    known.whole = true;
    known.upto = {static_cast<uint32_t>(same), static_cast<uint32_t>(same), static_cast<uint32_t>(prompt.ids.size()),
                  prompt.rewritten};
  } else {
    auto past = std::upper_bound(prompt.marks.begin(), prompt.marks.end(), same,
                                 [](size_t end, const Mark& mark) { return end < mark.reach; });
    if (past == prompt.marks.begin()) return {};
    known.upto = past[-1];
    known.continued = past == prompt.marks.end();
  }
  prompt.used.store(clock_.fetch_add(1, std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  known.prompt = *best;
  return known;
}

// Hints are left at the last mark and at some before it, each twice as far as the one before: texts that begin alike
// and go on for long have one in common.
bool PromptCache::met_before(std::string_view text, const std::vector<Mark>& marks) const {
  bool met = false;
  size_t next = 0;
  for (size_t i = 0; i < marks.size(); ++i) {
    uint64_t hint = hint_of(text, marks[i]);
    uint16_t tag = static_cast<uint16_t>(hint | 1);
    std::atomic<uint16_t>& left = met_[hint >> 52];
    met |= left.load(std::memory_order_relaxed) == tag;
    if (marks[i].end < next && i + 1 < marks.size()) continue;
    left.store(tag, std::memory_order_relaxed);
    next = size_t{2} * marks[i].end;
  }
  return met;
}

PromptCache::PromptCache()
    : off_([] {
        const char* wish = std::getenv("PRELUDE_TOKENIZER_PROMPTS");
        return wish && std::string_view(wish) == "off";
      }()) {}

void PromptCache::consider(std::string_view text, const Known& known, const std::vector<Mark>& marks,
                           const int32_t* ids, size_t n, bool rewritten) const {
  if (off_ || text.size() < least || marks.empty()) return;
  size_t rest = text.size() - known.upto.end;
  if (rest < text.size() / 16) return;  // encoding it costs no more than writing all of it
  // How much was new the marks say: those known are not among them.
  if (!known.continued && !met_before(text, marks)) return;
  if (text.size() + n * sizeof *ids > bound / 4) return;
  auto prompt = std::make_shared<Prompt>();
  prompt->text = text;
  prompt->ids.assign(ids, ids + n);
  if (known.prompt) {
    for (const Mark& mark : known.prompt->marks) {
      if (mark.end > known.upto.end) break;
      prompt->marks.push_back(mark);
    }
  }
  prompt->marks.insert(prompt->marks.end(), marks.begin(), marks.end());
  prompt->rewritten = rewritten;
  keep(std::move(prompt), known.continued ? known.prompt.get() : nullptr);
}

size_t PromptCache::count() const {
  std::lock_guard held(lock_);
  return list_ ? list_->size() : 0;
}
size_t PromptCache::bytes() const {
  std::lock_guard held(lock_);
  size_t bytes = 0;
  if (list_)
    for (const auto& one : *list_) bytes += one->bytes();
  return bytes;
}

void PromptCache::keep(std::shared_ptr<const Prompt> prompt, const Prompt* instead_of) const {
  prompt->used.store(clock_.fetch_add(1, std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  auto list = std::make_shared<List>();
  std::shared_ptr<const List> before;  // replaced entries are freed when the lock is not held
  std::unique_lock held(lock_, std::try_to_lock);
  if (!held) return;
  list->push_back(prompt);
  size_t bytes = prompt->bytes();
  if (list_) {
    for (const auto& one : *list_) {
      if (one.get() == instead_of || one->text == prompt->text) continue;
      list->push_back(one);
      bytes += one->bytes();
    }
  }
  while (bytes > bound || list->size() > most_prompts) {
    auto used = [](const std::shared_ptr<const Prompt>& one) { return one->used.load(std::memory_order_relaxed); };
    auto least_used =
        std::min_element(list->begin(), list->end(), [&](const auto& a, const auto& b) { return used(a) < used(b); });
    bytes -= (*least_used)->bytes();
    list->erase(least_used);
  }
  uint64_t firsts = 0;
  for (const auto& one : *list) firsts |= first_bit(one->text);
  before = std::exchange(list_, std::move(list));
  firsts_.store(firsts, std::memory_order_relaxed);
}

}  // namespace fasttoken
