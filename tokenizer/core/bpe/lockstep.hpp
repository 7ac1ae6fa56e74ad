// Many words merged side by side; kernels.cpp includes this once for each set of instructions.
//
//   lanes    word | word | word | ...       one merge of each in turn
//   a turn   the lines that the last turn prefetched are read; then the best pair is merged, and the table lines
//            of its new neighbours' merges are prefetched. They arrive while other lanes have their turns
//
//   places   from the end of a word: its last symbol is at 0, so that of two places the higher is further left
//   keys     one a pair, at its left symbol: rest of the table's entry << 6 | place. The greatest is the next merge;
//            those below 64 are none
//   alive    the places where a token begins, one bit each: neighbours are found by counting zeros

namespace fasttoken::FASTTOKEN_KERNEL {

constexpr size_t usual = 16;  // symbols; a word of so many takes no branch that another does not

#if FASTTOKEN_LEVEL == 2

static inline uint64_t match(const MergeTable::Probe& table, const MergeTable::Line& line, uint64_t key) {
  __m512i entries = _mm512_load_si512(line.entry);
  __mmask8 equal = _mm512_testn_epi64_mask(_mm512_xor_si512(entries, _mm512_set1_epi64(static_cast<int64_t>(key))),
                                           _mm512_set1_epi64(static_cast<int64_t>(table.compared)));
  __m128i first = _mm512_castsi512_si128(_mm512_maskz_compress_epi64(equal, entries));
  return static_cast<uint64_t>(_mm_cvtsi128_si64(first)) & table.rest_mask;
}
// Of n keys, which are followed by zeros up to a multiple of eight and up to `usual`.
static inline uint64_t greatest(const uint64_t* keys, size_t n) {
  __m512i best = _mm512_max_epu64(_mm512_load_si512(keys), _mm512_load_si512(keys + 8));
  for (size_t i = usual; i < n; i += 8) best = _mm512_max_epu64(best, _mm512_load_si512(keys + i));
  return _mm512_reduce_max_epu64(best);
}

#else

#if FASTTOKEN_LEVEL == 1
static inline uint64_t match(const MergeTable::Probe& table, const MergeTable::Line& line, uint64_t key) {
  const auto all = [&](uint64_t value) { return _mm256_set1_epi64x(static_cast<int64_t>(value)); };
  const __m256i compared = all(table.compared), wanted = all(key & table.compared);
  const auto found = [&](size_t i) {
    const __m256i four = _mm256_load_si256(reinterpret_cast<const __m256i*>(line.entry + i));
    return _mm256_and_si256(_mm256_cmpeq_epi64(_mm256_and_si256(four, compared), wanted), four);
  };
  const __m256i any = _mm256_or_si256(found(0), found(4));
  const __m128i two = _mm_or_si128(_mm256_castsi256_si128(any), _mm256_extracti128_si256(any, 1));
  return static_cast<uint64_t>(_mm_cvtsi128_si64(_mm_or_si128(two, _mm_unpackhi_epi64(two, two)))) & table.rest_mask;
}
#else
static inline uint64_t match(const MergeTable::Probe& table, const MergeTable::Line& line, uint64_t key) {
  return table.match(line, key);
}
#endif
static inline uint64_t greatest(const uint64_t* keys, size_t n) {
  int64_t best[8];  // keys have 63 bits; AVX2 compares numbers with a sign
  const auto key = [&](size_t i) { return static_cast<int64_t>(keys[i]); };
  for (size_t k = 0; k < 8; ++k) best[k] = std::max(key(k), key(8 + k));
  for (size_t i = usual; i < n; i += 8)
    for (size_t k = 0; k < 8; ++k) best[k] = std::max(best[k], key(i + k));
  for (size_t k = 0; k < 4; ++k) best[k] = std::max(best[k], best[k + 4]);
  for (size_t k = 0; k < 2; ++k) best[k] = std::max(best[k], best[k + 2]);
  return static_cast<uint64_t>(std::max(best[0], best[1]));
}

#endif

static inline uint64_t rest_at(const MergeTable::Probe& table, MergeTable::Probe::Place at) {
  uint64_t rest = match(table, *at.line, at.key);
  if (at.line->entry[0] & table.overflow & (rest - 1)) [[unlikely]]
    return table.beyond(at);
  return rest;
}

// The pair of each symbol and the one behind it, over the borders of words too.
static inline void read_pairs(const MergeTable::Probe& table, const uint32_t* ids, size_t n, uint64_t* rests) {
  constexpr size_t block = 32;
  MergeTable::Probe::Place places[block];
  for (size_t from = 0; from < n; from += block) {
    const size_t count = std::min(block, n - from);
    const uint32_t* at = ids + from;
    uint32_t all = at[-1];
    for (size_t i = 0; i < count; ++i) all |= at[i];
    if (all < MergeTable::direct) {
      for (size_t i = 0; i < count; ++i)
        rests[from + i] = table.direct_rests[at[i] * MergeTable::direct + at[static_cast<ptrdiff_t>(i) - 1]];
      continue;
    }
    for (size_t i = 0; i < count; ++i) {
      places[i] = table.place(at[i], at[static_cast<ptrdiff_t>(i) - 1]);
      __builtin_prefetch(places[i].line);
    }
    for (size_t i = 0; i < count; ++i) rests[from + i] = rest_at(table, places[i]);
  }
}

// The first where the mask is all ones, the other where it is 0. Masks are made by shifts: a comparison becomes a
// branch, which would be guessed wrong as often as not.
static inline const MergeTable::Line* either(uint64_t mask, const MergeTable::Line* x, const MergeTable::Line* y) {
  uintptr_t a = reinterpret_cast<uintptr_t>(x), b = reinterpret_cast<uintptr_t>(y);
  return reinterpret_cast<const MergeTable::Line*>(b + ((a - b) & static_cast<uintptr_t>(mask)));
}

struct MergeLane {
  static constexpr size_t most = MergeBatch::longest;
  alignas(64) uint64_t keys[most + 8];  // one more for the pair that the first symbol does not have on its left
  uint64_t alive;
  uint32_t* ids;
  size_t size, word;
  MergeTable::Probe::Place left, right;  // prefetched, the pairs of the last merge
  size_t left_at, right_at;
};

static void merge_batch(const MergeTable& merges, MergeBatch& batch) {
  static constexpr MergeTable::Line nothing{};
  const MergeTable::Probe table = merges.probe();
  const size_t words = batch.words().size();
  if (words == 0) return;
  uint32_t* const ids = batch.ids();
  const size_t readable = batch.symbols() + MergeBatch::margin;
  if (batch.keys().size() < readable) batch.keys().resize(readable);
  if (batch.tokens().size() < batch.symbols()) batch.tokens().resize(batch.symbols());
  uint64_t* const rests = batch.keys().data();
  ids[-1] = 0;
  read_pairs(table, ids, batch.symbols(), rests);
  Symbol* out = batch.tokens().data();
  size_t next = 0;

  auto begin = [&](MergeLane& lane) {
    MergeBatch::Word& word = batch.words()[next];
    lane.word = next++;
    lane.size = word.size;
    lane.ids = ids + word.from;
    lane.alive = ~uint64_t{0} >> (64 - lane.size);
    lane.left = lane.right = {&nothing, 0};
    lane.left_at = MergeLane::most;
    lane.right_at = 0;
    const uint64_t* from = rests + word.from;
    auto set = [&](size_t i) { lane.keys[i] = (from[i] << 6 | i) & (uint64_t{0} - (i < lane.size)); };
    for (size_t i = 0; i < std::max(usual, lane.size); i += 8)
      for (size_t k = 0; k < 8; ++k) set(i + k);
    lane.keys[0] = 0;
  };
  auto read = [&](MergeLane& lane) {
    lane.keys[lane.left_at] = rest_at(table, lane.left) << 6 | lane.left_at;
    lane.keys[lane.right_at] = rest_at(table, lane.right) << 6 | lane.right_at;
  };
  // False: there is none left.
  auto merge = [&](MergeLane& lane) {
    const uint64_t best = greatest(lane.keys, lane.size);
    if (best < 64) return false;
    const size_t i = best & 63;
    const uint64_t behind = lane.alive & ((uint64_t{1} << i) - 1), before = lane.alive & ~uint64_t{1} << i;
    // One bit more in each, so that there is always one to be found.
    const size_t j = 63 - static_cast<size_t>(std::countl_zero(behind | 1));
    const uint64_t beyond = behind ^ uint64_t{1} << j;
    const size_t k = 63 - static_cast<size_t>(std::countl_zero(beyond << 1 | 1));                 // one more; 0: none
    const size_t h = 1 + static_cast<size_t>(std::countr_zero(before >> 1 | uint64_t{1} << 63));  // 64: none
    const uint32_t id = table.id(best >> 6);
    lane.alive ^= uint64_t{1} << j;
    lane.keys[j] = 0;
    lane.ids[i] = id;
    lane.left = table.place(lane.ids[h], id);
    lane.right = table.place(id, lane.ids[static_cast<ptrdiff_t>(k) - 1]);
    lane.left.line = either((h >> 6) - 1, lane.left.line, &nothing);
    lane.right.line = either(static_cast<uint64_t>(-static_cast<int64_t>(k) >> 63), lane.right.line, &nothing);
    lane.left_at = h;
    lane.right_at = i;
    __builtin_prefetch(lane.left.line);
    __builtin_prefetch(lane.right.line);
    return true;
  };
  auto finish = [&](MergeLane& lane) {
    const Symbol* from = out;
    size_t end = lane.size;
    for (uint64_t at = lane.alive; at;) {
      size_t i = 63 - static_cast<size_t>(std::countl_zero(at));
      at ^= uint64_t{1} << i;
      size_t to = at ? 63 - static_cast<size_t>(std::countl_zero(at)) + 1 : 0;
      *out++ = {lane.ids[i], static_cast<uint32_t>(end - to)};
      end = to;
    }
    batch.words()[lane.word] = {static_cast<uint32_t>(from - batch.tokens().data()),
                                static_cast<uint32_t>(out - from)};
  };

  constexpr size_t width = 32;
  MergeLane lanes[width];
  MergeLane* running[width];
  size_t active = 0;
  for (; active < width && next < words; ++active) begin(*(running[active] = &lanes[active]));
  while (active > 0) {
    for (size_t i = 0; i < active; ++i) read(*running[i]);
    for (size_t i = 0; i < active;) {
      if (merge(*running[i])) {
        ++i;
        continue;
      }
      finish(*running[i]);
      if (next < words)
        begin(*running[i++]);
      else
        running[i] = running[--active];
    }
  }
}

}  // namespace fasttoken::FASTTOKEN_KERNEL
