// The packer writes each output once and nothing past it: buffers of the exact size, filled with a mark.
#include <vector>

#include "check.hpp"
#include "prelude/packer.hpp"

using namespace prelude;
using Ints = std::vector<int32_t>;

static constexpr int32_t kMark = -77;

static Ints random_ints(Random& r, int64_t n, int64_t below) {
  Ints v(static_cast<size_t>(n));
  for (int32_t& x : v) x = static_cast<int32_t>(r.below(below));
  return v;
}

static void prompts(Random& r) {
  const auto size = static_cast<int32_t>(1 + r.below(5));
  const int64_t count = r.below(6);
  std::vector<PromptRow> rows;
  std::vector<Ints> kept;  // the rows point into these
  kept.reserve(64);
  auto hold = [&kept](Ints v) -> const int32_t* { return kept.emplace_back(std::move(v)).data(); };
  for (int64_t i = 0; i < count; ++i) {
    PromptRow row{};
    row.num_tokens = r.below(20);
    row.tokens = hold(random_ints(r, row.num_tokens, 1000));
    if (r.chance(50)) row.positions = hold(random_ints(r, row.num_tokens, 1000));
    row.segments = 1, row.end = r.below(row.num_tokens + 1);
    if (r.chance(50)) {
      row.segments = 1 + r.below(3);
      Ints starts{0}, parents{-1};
      for (int64_t s = 1; s <= row.segments; ++s) {
        starts.push_back(s == row.segments
                             ? static_cast<int32_t>(row.num_tokens)
                             : starts.back() + static_cast<int32_t>(r.below(row.num_tokens - starts.back() + 1)));
        parents.push_back(static_cast<int32_t>(r.below(s + 1)) - 1);
      }
      parents.resize(static_cast<size_t>(row.segments));
      row.end = starts[1];
      row.starts = hold(starts), row.parents = hold(parents);
    }
    row.begin = r.below(row.end + 1);
    row.parent = r.below(i + 1) - 1;
    row.context_blocks = r.below(3), row.context = hold(random_ints(r, row.context_blocks, 50));
    row.context_len = r.below(row.context_blocks * size + 1);
    row.slot_count = r.chance(50) ? r.below(row.end - row.begin + 1) : 0;
    row.slot_start = r.below(7);
    row.slot_blocks = (row.slot_start + row.slot_count + size - 1) / size;
    row.slots = hold(random_ints(r, row.slot_blocks, 50));
    rows.push_back(row);
  }
  const PromptSizes sizes = measure(rows.data(), count, size);
  CHECK(sizes.reason == nullptr);
  auto room = [](int64_t n) { return Ints(static_cast<size_t>(n), kMark); };
  Ints ids = room(sizes.tokens), positions = room(sizes.tokens), starts = room(sizes.segments + 1);
  Ints parents = room(sizes.segments), lens = room(sizes.segments), indptr = room(sizes.segments + 1);
  Ints context = room(sizes.context), slots = room(sizes.tokens), offsets = room(count), segments = room(count);
  fill(rows.data(), count, size,
       {ids.data(), positions.data(), starts.data(), parents.data(), lens.data(), indptr.data(), context.data(),
        sizes.writes ? slots.data() : nullptr, offsets.data(), segments.data()});
  for (const Ints* v : {&ids, &positions, &starts, &parents, &lens, &indptr, &context, &offsets, &segments}) {
    for (int32_t x : *v) CHECK(x != kMark);
  }
  int64_t tokens = 0;
  for (int64_t i = 0; i < count; ++i) {
    const PromptRow& row = rows[static_cast<size_t>(i)];
    const int64_t end = row.starts != nullptr ? row.starts[row.segments] : row.end;
    CHECK(offsets[static_cast<size_t>(i)] == tokens);
    for (int64_t t = row.begin; t < end; ++t, ++tokens) {
      const auto at = static_cast<size_t>(tokens);
      CHECK(ids[at] == row.tokens[t]);
      CHECK(positions[at] == (row.positions != nullptr ? row.positions[t] : t));
      if (!sizes.writes) continue;
      const int64_t k = t - row.begin, p = row.slot_start + k;
      CHECK(slots[at] == (k < row.slot_count ? row.slots[p / size] * size + p % size : -1));
    }
  }
  CHECK(tokens == sizes.tokens && starts.back() == tokens && indptr.back() == sizes.context);
  // Each way to be wrong is told, and told before anything is written.
  if (count == 0) return;
  auto refused = [&](auto change) {
    std::vector<PromptRow> wrong = rows;
    change(wrong.back());
    CHECK(measure(wrong.data(), count, size).bad_row == count - 1);
  };
  refused([](PromptRow& w) { w.begin = -1; });
  refused([](PromptRow& w) { w.begin = w.end + 1; });
  refused([](PromptRow& w) { w.num_tokens = -1; });
  refused([&](PromptRow& w) { w.parent = count - 1; });
  refused([&](PromptRow& w) { w.context_len = w.context_blocks * size + 1; });
  refused([](PromptRow& w) { w.slot_count = w.end - w.begin + 1; });
}

static void decodes(Random& r) {
  const auto size = static_cast<int32_t>(1 + r.below(5));
  const int64_t count = r.below(6);
  std::vector<Ints> kept;
  kept.reserve(32);
  std::vector<DecodeRow> rows;
  int64_t blocks = 0;
  for (int64_t i = 0; i < count; ++i) {
    DecodeRow row{};
    row.num_tokens = 1 + r.below(20), row.known = 1 + r.below(row.num_tokens);
    const int64_t need = (row.known + size - 1) / size;
    row.shared_blocks = r.below(need + 1), row.own_blocks = need - row.shared_blocks + r.below(2);
    row.tokens = kept.emplace_back(random_ints(r, row.num_tokens, 1000)).data();
    row.shared = kept.emplace_back(random_ints(r, row.shared_blocks, 50)).data();
    row.own = kept.emplace_back(random_ints(r, row.own_blocks, 50)).data();
    CHECK(wrong_row(row, size) == nullptr);
    DecodeRow wrong = row;
    wrong.known = (row.shared_blocks + row.own_blocks) * size + 1, wrong.num_tokens = wrong.known;
    CHECK(wrong_row(wrong, size) != nullptr);
    blocks += row.shared_blocks + row.own_blocks;
    rows.push_back(row);
  }
  const auto n = static_cast<size_t>(count);
  Ints ids(n), positions(n), slots(n), lens(n), indptr(n + 1), table(static_cast<size_t>(blocks));
  fill(rows.data(), count, size,
       {ids.data(), positions.data(), slots.data(), lens.data(), indptr.data(), table.data()});
  for (size_t i = 0; i < n; ++i) {
    const int64_t p = rows[i].known - 1;
    const int32_t block = table[static_cast<size_t>(indptr[i] + p / size)];
    CHECK(ids[i] == rows[i].tokens[p] && positions[i] == p && lens[i] == p);
    CHECK(slots[i] == block * size + p % size);
  }
  CHECK(indptr.back() == blocks);
}

int main(int argc, char** argv) {
  const int64_t rounds = argc > 1 ? std::atoll(argv[1]) : 5000;
  Random random{3};
  for (int64_t i = 0; i < rounds; ++i) prompts(random), decodes(random);
  std::puts("packed as asked");
  return 0;
}
