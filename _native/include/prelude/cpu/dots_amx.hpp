// Products of bfloat16 by tiles of AMX: rows by 16 outputs. Included inside the namespace of AVX-512, after
// body_packed.hpp. The instruction sums 32 inputs from zero and adds that to the sums of those before, so a row has
// the same bits among any others.

struct alignas(64) TileShapes {
  uint8_t palette = 1, start = 0, unused[14] = {};
  uint16_t bytes[16] = {};  // of a row of each tile
  uint8_t rows[16] = {};

  void set(int tile, int of_rows, int64_t of_bytes) {
    rows[tile] = static_cast<uint8_t>(of_rows), bytes[tile] = static_cast<uint16_t>(of_bytes);
  }
};

// The shapes of the tiles while this lives; behind it the processor has no tiles to save.
struct Tiles {
  explicit Tiles(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }
  ~Tiles() { asm volatile("tilerelease"); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

template <int kTile>
inline void load_tile(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
inline void store_tile(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
inline void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kSums, int kRows, int kWeight>
inline void add_pairs() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kRows), "i"(kWeight));
}

inline constexpr int kTileWords = 16;  // of a row of a full tile

// Rows of x as pairs, words[row][word].
inline void prepare_pairs(const PackedArgs& a, const PackedRows& rows, int64_t first, int64_t last) {
  const int64_t inputs = a.weight.inputs, words = row_words(inputs, Packing::bf16);
  for (int64_t row = rows.first_of(first); row < rows.first_of(last); ++row) {
    uint32_t* to = rows.words + row * words;
    to[words - 1] = 0;
    if (a.x_type == Type::f32)
      narrow(row_of<float>(a, row), inputs, reinterpret_cast<uint16_t*>(to));
    else
      std::memcpy(to, row_of<uint16_t>(a, row), static_cast<size_t>(inputs) * 2);
  }
}

// One or two blocks of R rows by the outputs of a group.
template <int R>
inline void multiply_tiles(const PackedArgs& a, const PackedRows& rows, int64_t first_row, int64_t last_row,
                           int64_t group) {
  TileShapes shapes;
  for (int sums : {0, 1, 2, 3}) shapes.set(sums, R, kHalf * 4);
  for (int x : {4, 5}) shapes.set(x, R, kTileWords * 4);
  for (int weight : {6, 7}) shapes.set(weight, kTileWords, kHalf * 4);
  const Tiles tiles(shapes);
  const int64_t of_row = row_words(a.weight.inputs, Packing::bf16), whole = of_row / kTileWords * kTileWords;
  alignas(64) float made[2 * R][kGroup];
  const uint32_t* words = a.weight.words + group * group_words(a.weight.inputs, Packing::bf16);
  for (int64_t row = first_row; row < last_row;) {
    const bool two = row + 2 * R <= last_row;
    const uint32_t* x = rows.words + row * of_row;
    zero_tile<0>(), zero_tile<1>(), zero_tile<2>(), zero_tile<3>();
    for (int64_t i = 0; i < whole; i += kTileWords) {
      load_tile<4>(x + i, of_row * 4);
      load_tile<6>(words + i * kGroup, kGroup * 4), load_tile<7>(words + i * kGroup + kHalf, kGroup * 4);
      add_pairs<0, 4, 6>(), add_pairs<1, 4, 7>();
      if (!two) continue;
      load_tile<5>(x + R * of_row + i, of_row * 4);
      add_pairs<2, 5, 6>(), add_pairs<3, 5, 7>();
    }
    store_tile<0>(made[0], kGroup * 4), store_tile<1>(made[0] + kHalf, kGroup * 4);
    if (two) store_tile<2>(made[R], kGroup * 4), store_tile<3>(made[R] + kHalf, kGroup * 4);
    const int together = two ? 2 * R : R;
    for (int64_t i = whole; i < of_row; ++i)
      for (int r = 0; r < together; ++r)
        for (int h : {0, kHalf}) {
          auto sum = load(made[r] + h);
          Bf16Dot::step(sum, Bf16Dot::weight(words + i * kGroup + h, 0), Bf16Dot::input(x[r * of_row + i]));
          store(made[r] + h, sum);
        }
    finish(a, row, together, group * kGroup, made[0], kGroup);
    row += together;
  }
}

// Blocks of both sizes meet a group while it is in the cache.
template <int R>
inline void multiply_pair_tiles(const PackedArgs& a, const PackedRows& rows, int64_t first_block, int64_t last_block,
                                int64_t first, int64_t last, float*) {
  const int64_t row = rows.first_of(first_block), end = rows.first_of(last_block);
  const int64_t middle = rows.first_of(std::clamp(rows.longer, first_block, last_block));
  for (int64_t group = first; group < last; ++group) {
    if (row < middle) multiply_tiles<R>(a, rows, row, middle, group);
    if (middle < end) multiply_tiles<std::max(1, R - 1)>(a, rows, middle, end, group);
  }
}

template <int... R>
constexpr PackedKernels pair_tiles(std::integer_sequence<int, R...>) {
  return {"amx",       Packing::bf16,  kMostPackedRows, kLanes,        false,
          pack<float>, pack<uint16_t>, pack_halves,     prepare_pairs, {multiply_pair_tiles<R + 1>...}};
}
