// Attention of one unit: some queries of one item on one KV head. Included once per target, inside its namespace.
//
//   keys      packed once a unit, but for those that the unit before has too, and transposed into panels of kLanes
//             keys: panel[d][key]. One load gives a value of kLanes keys, and the score of a (query, key) pair is one
//             chain of products over d.
//   tile      kTileRows rows = (query, head) pairs that share the KV head. All their scores are kept, so the
//             softmax needs no rescaling: largest, exp and sum, weighted values, one division.
//   order     everything about a row is summed in the order of its own keys. Keys behind the row's own, which a
//             tile computes for its later rows, have weight exactly 0.
//
//   relative  the terms of DeBERTa are products with vectors of a row of distances. Those of the keys are made once a
//             unit, those of the queries once a tile, for the rows that occur; each score picks two of them.
//
// Work of a unit of R rows and N keys of width D: 4 R N D flops and R N exponentials, after moving 2 N D values.

struct UnitRoom {
  float* panels;    // [panels][width][kLanes]
  float* values;    // [keys][padded width], unless they are read in place
  float* scores;    // [kTileRows][panels * kLanes]
  float* queries;   // [kTileRows][width]
  float* row;       // [kRoomRows][padded width]: rows on their way, output rows
  float* by_key;    // [keys][relative panels * kLanes]: keys by vectors of rows
  float* by_query;  // [kTileRows][relative panels * kLanes]: queries by vectors of rows
};

constexpr int kRoomRows = kLanes > kTileRows ? kLanes : kTileRows;

inline int64_t padded_width(int64_t width) { return (width + kLanes - 1) / kLanes * kLanes; }

inline int64_t unit_floats(int64_t keys, const AttentionShape& shape) {
  const int64_t width = shape.width, panels = (keys + kLanes - 1) / kLanes, wide = padded_width(width);
  return panels * kLanes * (width + wide + kTileRows) + kTileRows * width + kRoomRows * wide +
         (keys + kTileRows) * shape.relative_panels * kLanes;
}

inline UnitRoom cut_room(float* room, int64_t keys, const AttentionShape& shape) {
  const int64_t width = shape.width, panels = (keys + kLanes - 1) / kLanes, wide = padded_width(width);
  UnitRoom cut;
  cut.panels = room;
  cut.values = cut.panels + panels * kLanes * width;
  cut.scores = cut.values + panels * kLanes * wide;
  cut.queries = cut.scores + panels * kLanes * kTileRows;
  cut.row = cut.queries + kTileRows * width;
  cut.by_key = cut.row + kRoomRows * wide;
  cut.by_query = cut.by_key + keys * shape.relative_panels * kLanes;
  return cut;
}

// Walks the keys of an item in order.
struct KeyCursor {
  const KeyRun* run;
  int64_t left;
  int64_t at;

  // Behind the first `skip` keys.
  KeyCursor(const KeyRun* first, int64_t skip) : run(first), left(first->length), at(first->from) {
    for (; skip > 0 && skip >= left; at = run->from) {
      skip -= left;
      left = (++run)->length;
    }
    left -= skip;
    at += skip;
  }
  void skip_empty() {
    while (left == 0) {
      ++run;
      left = run->length;
      at = run->from;
    }
  }
  int64_t next(bool& pool) {
    skip_empty();
    --left;
    pool = run->pool;
    return at++;
  }
};

// `count` values of `base`, from the one numbered `offset` on, as floats.
inline void copy_floats(Type type, const void* base, int64_t offset, int64_t count, float* to) {
  if (type == Type::f32) {
    std::memcpy(to, static_cast<const float*>(base) + offset, sizeof(float) * static_cast<size_t>(count));
  } else {
    widen(static_cast<const uint16_t*>(base) + offset, count, to);
  }
}

// Keys [from, keys); `cursor` is at the first of them.
inline void pack_keys(const AttentionTensors& t, KeyCursor cursor, int64_t from, int64_t keys, int64_t head_at,
                      int64_t width, const UnitRoom& room) {
  const int64_t wide = padded_width(width), whole = width / kLanes * kLanes;
  const float* rows[kLanes];
  for (int64_t first = from; first < keys; first += kLanes) {
    float* panel = room.panels + first * width;
    const int count = static_cast<int>(keys - first < kLanes ? keys - first : kLanes);
    for (int l = 0; l < count; ++l) {
      bool pool;
      const int64_t at = cursor.next(pool);
      const int64_t offset = at * (pool ? t.pool_stride : t.k_stride) + head_at;
      const void* base = pool ? t.pool_k : t.k;
      if (t.type == Type::f32) {
        rows[l] = static_cast<const float*>(base) + offset;
      } else {
        widen(static_cast<const uint16_t*>(base) + offset, width, room.row + l * wide);
        rows[l] = room.row + l * wide;
      }
    }
    // Lanes behind the last key repeat it; their scores are hidden.
    for (int l = count; l < kLanes; ++l) rows[l] = rows[count - 1];
    for (int64_t d = 0; d < whole; d += kLanes) transpose(rows, d, panel + d * kLanes);
    for (int64_t d = whole; d < width; ++d)
      for (int l = 0; l < kLanes; ++l) panel[d * kLanes + l] = rows[l][d];
  }
}

inline constexpr int64_t kPackTiles = 3;  // that read values where they lie, at most

// The values as float rows: `stride` apart, padded with zeros to whole vectors. Those that more tiles of the unit's
// `rows` read are copied side by side: a step's rows lie some multiple of 512 bytes apart, and the cache holds few of
// them at once.
inline const float* pack_values(const AttentionTensors& t, KeyCursor cursor, int64_t keys, int64_t head_at,
                                int64_t width, int64_t rows, const UnitRoom& room, int64_t& stride) {
  const int64_t wide = padded_width(width);
  cursor.skip_empty();
  if (t.type == Type::f32 && wide == width && cursor.left >= keys && rows <= kPackTiles * kTileRows) {
    stride = cursor.run->pool ? t.pool_stride : t.v_stride;
    return static_cast<const float*>(cursor.run->pool ? t.pool_v : t.v) + cursor.at * stride + head_at;
  }
  stride = wide;
  for (int64_t key = 0; key < keys; ++key) {
    bool pool;
    const int64_t at = cursor.next(pool);
    const int64_t offset = at * (pool ? t.pool_stride : t.v_stride) + head_at;
    const void* base = pool ? t.pool_v : t.v;
    float* to = room.values + key * wide;
    copy_floats(t.type, base, offset, width, to);
    for (int64_t d = width; d < wide; ++d) to[d] = 0.0f;
  }
  return room.values;
}

template <int R, int V>
inline void score_panels(const float* queries, const float* panel, int64_t width, float* scores, int64_t stride) {
  Vec sums[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sums[r][v] = zero();
  const int64_t next = width * kLanes;
  for (int64_t d = 0; d < width; ++d) {
    Vec keys[V];
    for (int v = 0; v < V; ++v) keys[v] = load(panel + v * next + d * kLanes);
    for (int r = 0; r < R; ++r) {
      const Vec q = same(queries[r * width + d]);
      for (int v = 0; v < V; ++v) sums[r][v] = fma(q, keys[v], sums[r][v]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) store(scores + r * stride + v * kLanes, sums[r][v]);
}

// Products of R rows with all vectors of some panels: out[row * panels * kLanes + vector].
template <int R>
inline void all_scores(const float* rows, const float* panel, int64_t panels, int64_t width, float* out) {
  const int64_t stride = panels * kLanes;
  int64_t p = 0;
  for (; p + kKeyVectors <= panels; p += kKeyVectors)
    score_panels<R, kKeyVectors>(rows, panel + p * width * kLanes, width, out + p * kLanes, stride);
  for (; p < panels; ++p) score_panels<R, 1>(rows, panel + p * width * kLanes, width, out + p * kLanes, stride);
}

template <int R>
inline void some_scores(int64_t count, const float* rows, const float* panel, int64_t panels, int64_t width,
                        float* out) {
  if constexpr (R > 0) {
    if (count == R) return all_scores<R>(rows, panel, panels, width, out);
    some_scores<R - 1>(count, rows, panel, panels, width, out);
  }
}

// The rows of distances that occur in a unit, in whole panels; `panels` is 0 without a relative term.
struct RelativeRows {
  const int32_t* row;  // of distance d: row[d]
  int64_t first;       // the first row of the panels
  int64_t panels;
};

inline RelativeRows relative_rows(const AttentionTensors& t, const AttentionUnit& unit) {
  if (!t.relative.keys) return {nullptr, 0, 0};
  int32_t nearest = t.places[unit.first], farthest = nearest;
  for (int32_t q = unit.first; q < unit.last; ++q) {
    nearest = t.places[q] < nearest ? t.places[q] : nearest;
    farthest = t.places[q] > farthest ? t.places[q] : farthest;
  }
  const int32_t* row = t.relative.rows + t.relative.span - 1;
  const int64_t first = row[nearest - (unit.keys - 1)] / kLanes, last = row[farthest - unit.from] / kLanes;
  return {row, first * kLanes, last + 1 - first};
}

inline void meet_rows_by_key(const AttentionTensors& t, KeyCursor cursor, int64_t keys, int64_t head_at,
                             int64_t width, const float* panels, int64_t count, const UnitRoom& room) {
  for (int64_t first = 0; first < keys; first += kTileRows) {
    const int64_t some = keys - first < kTileRows ? keys - first : kTileRows;
    for (int64_t i = 0; i < some; ++i) {
      bool pool;
      const int64_t at = cursor.next(pool);
      const int64_t offset = at * (pool ? t.pool_stride : t.k_stride) + head_at;
      const void* base = pool ? t.pool_k : t.k;
      copy_floats(t.type, base, offset, width, room.queries + i * width);
    }
    some_scores<kTileRows>(some, room.queries, panels, count, width, room.by_key + first * count * kLanes);
  }
}

// Scores to weights in place; returns the reciprocal of their sum. Keys before `hidden` have weight 0. `cap`: see
// AttentionShape.
inline float soften(float* scores, int64_t hidden, int64_t visible, int64_t computed, float cap) {
  if (cap > 0.0f) soft_cap(scores, visible, cap);
  for (int64_t k = 0; k < hidden; ++k) scores[k] = -std::numeric_limits<float>::infinity();
  for (int64_t k = visible; k < computed; ++k) scores[k] = -std::numeric_limits<float>::infinity();
  const int64_t reached = (visible + kLanes - 1) / kLanes * kLanes;
  Vec most = load(scores);
  for (int64_t k = kLanes; k < reached; k += kLanes) most = max(most, load(scores + k));
  const Vec top = same(-largest(most));
  Vec total = zero();
  for (int64_t k = 0; k < reached; k += kLanes) {
    const Vec weight = exp_of(add(load(scores + k), top));
    store(scores + k, weight);
    total = add(total, weight);
  }
  for (int64_t k = reached; k < computed; ++k) scores[k] = 0.0f;
  return 1.0f / sum(total);
}

template <int R, int V>
inline void weigh(const float* weights, int64_t weight_stride, const float* values, int64_t stride, int64_t keys,
                  const float* inverse, float* out, int64_t out_stride) {
  Vec sums[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sums[r][v] = zero();
  for (int64_t k = 0; k < keys; ++k) {
    Vec value[V];
    for (int v = 0; v < V; ++v) value[v] = load(values + k * stride + v * kLanes);
    for (int r = 0; r < R; ++r) {
      const Vec w = same(weights[r * weight_stride + k]);
      for (int v = 0; v < V; ++v) sums[r][v] = fma(w, value[v], sums[r][v]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) store(out + r * out_stride + v * kLanes, mul(sums[r][v], same(inverse[r])));
}

struct Tile {
  const AttentionTensors* tensors;
  const int32_t* visible;  // a query sees the keys of the item before this one,
  const int32_t* hidden;   // and none before this one; null: all
  int64_t from;            // the item's key with which the unit begins
  int64_t group;           // heads of a KV head
  int64_t head;            // the first of them
  int64_t width;
  float scale;
  float cap;
  const float* values;
  int64_t value_stride;
  RelativeRows relative;
  int64_t panels_of_head = 0;  // of the relative term
};

// Adds the relative term to scores of keys [least, least + count) of the unit; `row` is the query's in the tile.
inline void add_relative(const Tile& tile, int64_t query, int64_t row, int64_t least, int64_t count,
                         const UnitRoom& room, float* scores) {
  const int64_t stride = tile.relative.panels * kLanes;
  const int32_t* rows = tile.relative.row + (tile.tensors->places[query] - tile.from - least);
  const float* by_query = room.by_query + row * stride - tile.relative.first;
  const float* by_key = room.by_key + least * stride - tile.relative.first;
  for (int64_t k = 0; k < count; ++k) scores[k] += by_query[rows[-k]] + by_key[k * stride + rows[-k]];
}

// Rows row0 ... row0 + R - 1 of the unit, row = (query - first) * group + head within the group.
template <int R>
void run_tile(const Tile& tile, int64_t first, int64_t row0, const UnitRoom& unit) {
  const AttentionTensors& t = *tile.tensors;
  const int64_t width = tile.width, wide = padded_width(width);
  int64_t offset[R], sees[R], skips[R], most = 0, least = std::numeric_limits<int64_t>::max();
  UnitRoom room = unit;
  for (int r = 0; r < R; ++r) {
    const int64_t query = first + (row0 + r) / tile.group, at = (tile.head + (row0 + r) % tile.group) * width;
    const int64_t row = query - t.first_query;
    float* q = room.queries + r * width;
    copy_floats(t.type, t.q, row * t.q_stride + at, width, q);
    for (int64_t d = 0; d < width; ++d) q[d] *= tile.scale;
    offset[r] = row * t.out_stride + at;
    sees[r] = tile.visible[query] - tile.from;
    skips[r] = tile.hidden ? tile.hidden[query] - tile.from : 0;
    most = sees[r] > most ? sees[r] : most;
    least = skips[r] < least ? skips[r] : least;
  }
  // The tile begins at the panel of the first key that one of its rows sees.
  least = least / kLanes * kLanes;
  room.panels += least * width;
  const float* values = tile.values + least * tile.value_stride;
  most -= least;
  const int64_t panels = (most + kLanes - 1) / kLanes, stride = panels * kLanes;
  all_scores<R>(room.queries, room.panels, panels, width, room.scores);
  if (tile.relative.panels > 0) {
    const int64_t from = (tile.head * tile.panels_of_head + tile.relative.first / kLanes) * width * kLanes;
    all_scores<R>(room.queries, t.relative.keys + from, tile.relative.panels, width, room.by_query);
    for (int r = 0; r < R; ++r) add_relative(tile, first + row0 + r, r, least, most, room, room.scores + r * stride);
  }
  float inverse[R];
  for (int r = 0; r < R; ++r)
    inverse[r] = soften(room.scores + r * stride, skips[r] - least, sees[r] - least, stride, tile.cap);
  int64_t d = 0;
  float* out = room.row;
  for (; d + kValueVectors * kLanes <= wide; d += kValueVectors * kLanes)
    weigh<R, kValueVectors>(room.scores, stride, values + d, tile.value_stride, most, inverse, out + d, wide);
  for (; d < wide; d += kLanes)
    weigh<R, 1>(room.scores, stride, values + d, tile.value_stride, most, inverse, out + d, wide);
  for (int r = 0; r < R; ++r) {
    if (t.type == Type::f32) {
      std::memcpy(static_cast<float*>(t.out) + offset[r], out + r * wide, sizeof(float) * static_cast<size_t>(width));
    } else {
      narrow(out + r * wide, width, static_cast<uint16_t*>(t.out) + offset[r]);
    }
  }
}

template <int R>
void run_short_tile(const Tile& tile, int64_t first, int64_t row0, int64_t rows, const UnitRoom& room) {
  if constexpr (R > 0) {
    if (rows == R) return run_tile<R>(tile, first, row0, room);
    run_short_tile<R - 1>(tile, first, row0, rows, room);
  }
}

inline void attend_unit(const AttentionShape& shape, const AttentionTensors& t, const KeyRun* runs,
                        const int32_t* visible, const int32_t* hidden, const AttentionUnit& unit, float* floats) {
  const int64_t width = shape.width, group = shape.heads / shape.kv_heads;
  const int64_t keys = unit.keys - unit.from;
  const UnitRoom room = cut_room(floats, keys, shape);
  const int64_t head_at = unit.kv_head * width;
  const KeyCursor cursor(runs, unit.from);
  pack_keys(t, KeyCursor(runs, unit.from + unit.packed), unit.packed, keys, head_at, width, room);
  Tile tile{&t,    visible,     hidden,    unit.from, group, unit.kv_head * group,
            width, shape.scale, shape.cap, nullptr,   0,     relative_rows(t, unit)};
  const int64_t rows = (unit.last - unit.first) * group;
  tile.values = pack_values(t, cursor, keys, head_at, width, rows, room, tile.value_stride);
  if (tile.relative.panels > 0) {
    tile.panels_of_head = shape.relative_panels;
    const int64_t first = unit.kv_head * shape.relative_panels + tile.relative.first / kLanes;
    meet_rows_by_key(t, cursor, keys, head_at, width, t.relative.queries + first * width * kLanes,
                     tile.relative.panels, room);
  }
  int64_t row = 0;
  for (; row + kTileRows <= rows; row += kTileRows) run_tile<kTileRows>(tile, unit.first, row, room);
  run_short_tile<kTileRows - 1>(tile, unit.first, row, rows - row, room);
}
