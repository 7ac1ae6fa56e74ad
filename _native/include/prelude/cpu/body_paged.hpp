// Attention of one decode row over its block table. Included once per target, inside its namespace, after
// body_rows.hpp.
//
//   tile      kPagedKeys keys, as where they lie in the pool. Their weights stay in the first-level cache.
//   heads     up to kPagedHeads query heads of a KV head share one pass over its keys and one over its values; sums
//             and their operands are in registers throughout.
//   order     tiles as the sequence has them, under a running maximum: earlier sums are scaled down. A
//             row's bits do not depend on the other rows.
//
//   memory    rows of long sequences come from far away, block by block, which no processor foresees: the row
//             kKeysAhead keys later is prefetched. It costs little where all lies in the cache, and saves more where
//             others use the memory too.
//
// A NaN or an infinity in a key that is read reaches the output; keys behind the row's own are never looked at.

constexpr int kPagedKeys = 512;  // a multiple of kLanes
constexpr int kKeysAhead = 16;

// Loops of constant length are spelled out by the compiler: else it keeps the sums in memory.
#if defined(__GNUC__) && !defined(__clang__)
#define PRELUDE_SPELL_OUT _Pragma("GCC unroll 4")
#else
#define PRELUDE_SPELL_OUT
#endif

struct PagedTile {
  int64_t at[kPagedKeys + kKeysAhead + 4];  // where the keys begin, in values; behind the last one its place again
  int count;

  // The next keys of a table, from `block` and the slot `in_block` on, both of which go on.
  void fill(int64_t left, const int32_t*& block, int& in_block, int block_size, int64_t slot_values) {
    count = left < kPagedKeys ? static_cast<int>(left) : kPagedKeys;
    for (int i = 0; i < count;) {
      const int64_t from = (int64_t{*block} * block_size + in_block) * slot_values;
      const int some = count - i < block_size - in_block ? count - i : block_size - in_block;
      for (int j = 0; j < some; ++j) at[i + j] = from + j * slot_values;
      i += some, in_block += some;
      if (in_block == block_size) in_block = 0, ++block;
    }
    for (int j = 0; j < kKeysAhead + 4; ++j) at[count + j] = at[count - 1];
  }
};

template <class T>
inline void fetch_values(const T* p, int64_t values) {
  constexpr int64_t line = 64 / sizeof(T);
  for (int64_t at = 0; at < values; at += line) fetch(p + at);
}

inline Vec load_few(const float* p, int n) { return load_some(p, n); }
inline Vec load_few(const uint16_t* p, int n) {
  float values[kLanes] = {};
  widen(p, n, values);
  return load(values);
}

// The terms of kLanes values of four keys, or of the first `few`, in their products with G queries.
template <int G, bool Whole, class T>
inline void meet_keys(const T* const* keys, const float* q, int64_t wide, int64_t d, int few, Vec (*parts)[4]) {
  Vec queries[G];
  PRELUDE_SPELL_OUT
  for (int g = 0; g < G; ++g) queries[g] = in_register(load(q + g * wide + d));
  PRELUDE_SPELL_OUT
  for (int j = 0; j < 4; ++j) {
    const Vec key = in_register(Whole ? load(keys[j] + d) : load_few(keys[j] + d, few));
    PRELUDE_SPELL_OUT
    for (int g = 0; g < G; ++g) parts[g][j] = fma(queries[g], key, parts[g][j]);
  }
}

// scores[g][i] = q[g] . key i. Rows of q are `wide` apart, with zeros behind `width`. The values behind the
// last vector have a call of their own: in the loop they would cost registers and a branch.
template <int G, class T>
inline void score_tile(const PagedTile& tile, const T* k, const float* q, int64_t width, int64_t wide,
                       float* scores) {
  constexpr int64_t line = 64 / sizeof(T);
  const int few = static_cast<int>(width % kLanes);
  const int64_t whole = width - few;
  for (int i = 0; i < tile.count; i += 4) {
    const T *keys[4], *soon[4];
    PRELUDE_SPELL_OUT
    for (int j = 0; j < 4; ++j) keys[j] = k + tile.at[i + j], soon[j] = k + tile.at[i + j + kKeysAhead];
    for (int64_t d = 0; d < width; d += line) {
      PRELUDE_SPELL_OUT
      for (int j = 0; j < 4; ++j) fetch(soon[j] + d);
    }
    Vec parts[G][4];
    PRELUDE_SPELL_OUT
    for (int g = 0; g < G; ++g) {
      PRELUDE_SPELL_OUT
      for (int j = 0; j < 4; ++j) parts[g][j] = zero();
    }
    for (int64_t d = 0; d < whole; d += kLanes) meet_keys<G, true>(keys, q, wide, d, kLanes, parts);
    if (few > 0) meet_keys<G, false>(keys, q, wide, whole, few, parts);
    PRELUDE_SPELL_OUT
    for (int g = 0; g < G; ++g) four_sums(parts[g], scores + g * kPagedKeys + i);
  }
}

// Scores become weights relative to the largest so far. The factor for the earlier sums is returned.
inline float soften_tile(float* scores, int count, float cap, float& most, float& total) {
  if (cap > 0.0f) soft_cap(scores, count, cap);
  for (int i = count; i % kLanes; ++i) scores[i] = -std::numeric_limits<float>::infinity();
  Vec high = same(most);
  for (int i = 0; i < count; i += kLanes) high = max(high, load(scores + i));
  const float before = most;
  most = largest(high);
  const Vec top = same(-most);
  Vec sums = zero();
  for (int i = 0; i < count; i += kLanes) {
    const Vec weights = exp_of(add(load(scores + i), top));
    store(scores + i, weights);
    sums = add(sums, weights);
  }
  float factor[kLanes];
  store(factor, exp_of(same(before - most)));
  total = total * factor[0] + sum(sums);
  return factor[0];
}

// out[g] = out[g] * factors[g] + the weighted values: V vectors of them, or the first `few` of one.
template <int G, int V, class T>
inline void add_values(const PagedTile& tile, const T* v, const float* weights, const float* factors, int few,
                       float* out, int64_t wide) {
  Vec sums[G][V];
  PRELUDE_SPELL_OUT
  for (int g = 0; g < G; ++g) {
    PRELUDE_SPELL_OUT
    for (int n = 0; n < V; ++n) sums[g][n] = mul(load(out + g * wide + n * kLanes), same(factors[g]));
  }
  for (int i = 0; i < tile.count; ++i) {
    const T* value = v + tile.at[i];
    fetch_values(v + tile.at[i + kKeysAhead], V > 1 ? V * kLanes : few);
    Vec by[G];
    PRELUDE_SPELL_OUT
    for (int g = 0; g < G; ++g) by[g] = in_register(same(weights[g * kPagedKeys + i]));
    PRELUDE_SPELL_OUT
    for (int n = 0; n < V; ++n) {
      const Vec one = in_register(V > 1 || few == kLanes ? load(value + n * kLanes) : load_few(value, few));
      PRELUDE_SPELL_OUT
      for (int g = 0; g < G; ++g) sums[g][n] = fma(by[g], one, sums[g][n]);
    }
  }
  PRELUDE_SPELL_OUT
  for (int g = 0; g < G; ++g) {
    PRELUDE_SPELL_OUT
    for (int n = 0; n < V; ++n) store(out + g * wide + n * kLanes, sums[g][n]);
  }
}
#undef PRELUDE_SPELL_OUT

// G heads of one KV head; q, most, total and out are those of the first.
template <int G, class T>
void attend_tile(const PagedTile& tile, const T* k, const T* v, const float* q, int64_t width, int64_t wide,
                 float cap, float* most, float* total, float* out) {
  alignas(64) float scores[G * kPagedKeys];
  float factors[G];
  score_tile<G>(tile, k, q, width, wide, scores);
  for (int i = 0; i < kKeysAhead; ++i) fetch_values(v + tile.at[i], width);
  for (int g = 0; g < G; ++g) factors[g] = soften_tile(scores + g * kPagedKeys, tile.count, cap, most[g], total[g]);
  int64_t d = 0;
  for (; d + kPagedVectors * kLanes <= width; d += kPagedVectors * kLanes)
    add_values<G, kPagedVectors>(tile, v + d, scores, factors, kLanes, out + d, wide);
  for (; d < width; d += kLanes) {
    const int few = width - d < kLanes ? static_cast<int>(width - d) : kLanes;
    add_values<G, 1>(tile, v + d, scores, factors, few, out + d, wide);
  }
}

template <int G, class T>
inline void attend_some(int heads, const PagedTile& tile, const T* k, const T* v, const float* q, int64_t width,
                        int64_t wide, float cap, float* most, float* total, float* out) {
  if constexpr (G > 1) {
    if (heads < G) return attend_some<G - 1>(heads, tile, k, v, q, width, wide, cap, most, total, out);
  }
  attend_tile<G>(tile, k, v, q, width, wide, cap, most, total, out);
}

template <class T>
inline void attend_row_of(const PagedArgs& a, int64_t row, int first, int last, float* room) {
  const BlockTables& tables = a.tables;
  const int64_t width = a.width, wide = padded_width(width), slot_values = int64_t{a.kv_heads} * width;
  const int group = a.heads / a.kv_heads;
  float *q = room, *out = q + a.heads * wide, *most = out + a.heads * wide, *total = most + a.heads;
  const T* given = static_cast<const T*>(a.q) + row * a.q_stride;
  for (int head = first; head < last; ++head) {
    for (int64_t d = 0; d < wide; ++d) {
      q[head * wide + d] = d < width ? as_float(given[head * width + d]) * a.scale : 0.0f;
      out[head * wide + d] = 0.0f;
    }
    most[head] = -std::numeric_limits<float>::infinity();
    total[head] = 0.0f;
  }
  const int32_t* block = tables.blocks + tables.begins[row];
  int in_block = tables.offsets ? tables.offsets[row] : 0;
  PagedTile tile;
  for (int64_t left = tables.lengths[row]; left > 0; left -= kPagedKeys) {
    tile.fill(left, block, in_block, tables.block_size, slot_values);
    for (int head = first; head < last;) {
      // As even as it goes: 4 of at most 3 are two and two.
      const int rest = group - head % group, passes = (rest + kPagedHeads - 1) / kPagedHeads;
      const int together = (rest + passes - 1) / passes;
      const int64_t from = head / group * width;
      attend_some<kPagedHeads>(together, tile, static_cast<const T*>(a.k) + from, static_cast<const T*>(a.v) + from,
                               q + head * wide, width, wide, a.cap, most + head, total + head, out + head * wide);
      head += together;
    }
  }
  T* to = static_cast<T*>(a.out) + row * a.heads * width;
  for (int head = first; head < last; ++head) {
    float* values = out + head * wide;
    const float by = 1.0f / total[head];
    for (int64_t d = 0; d < width; ++d) values[d] *= by;
    if constexpr (sizeof(T) == sizeof(float)) {
      std::memcpy(to + head * width, values, sizeof(float) * static_cast<size_t>(width));
    } else {
      narrow(values, width, to + head * width);
    }
  }
}

inline void attend_row(const PagedArgs& a, int64_t row, int first, int last, float* room) {
  if (a.type == Type::f32) return attend_row_of<float>(a, row, first, last, room);
  attend_row_of<uint16_t>(a, row, first, last, room);
}
