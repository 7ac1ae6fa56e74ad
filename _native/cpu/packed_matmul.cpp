// Products with packed weights: the kernels of each target, packing, and the cut over threads.
#include "prelude/cpu/packed_matmul.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "prelude/cpu/blocks.hpp"
#include "prelude/cpu/half.hpp"
#include "prelude/cpu/regions.hpp"
#include "prelude/cpu/targets.hpp"
#include "prelude/status.hpp"

#ifdef __linux__
#include <sys/mman.h>
#endif

#ifdef PRELUDE_X86_TARGETS
#include <cpuid.h>
#if defined(__linux__) && defined(__x86_64__)
#define PRELUDE_AMX 1
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(PRELUDE_NEON) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace prelude::cpu {

// The tables of a target, by packing; pairs of bfloat16 take an instruction that most have not.
#define PRELUDE_TABLES(name, Int8, Some)                                                            \
  const PackedKernels kF32 = packed_table<F32Dot>(name), kInt8 = packed_table<Int8>(name);          \
  const PackedKernels kWidened = packed_table<WidenedDot>(name), kF16 = packed_table<F16Dot>(name); \
  const PackedKernels kFour = packed_table<FewDot<Some, Packing::q4_k>>(name);                      \
  const PackedKernels kSix = packed_table<FewDot<Some, Packing::q6_k>>(name);                       \
  const PackedKernels* const kTables[] = {&kF32, nullptr, &kInt8, &kWidened, &kF16, &kFour, &kSix};

// The namespaces are not those of kernels.cpp: the same functions are compiled here for other processors.
namespace packed_portable {
// clang-format off: the order matters
#include "prelude/cpu/lanes_portable.hpp"
#include "prelude/cpu/body_rows.hpp"
#include "prelude/cpu/dots_portable.hpp"
#include "prelude/cpu/body_packed.hpp"
// clang-format on
PRELUDE_TABLES("portable", Int8Dot, Int8Dot)
}  // namespace packed_portable

#ifdef PRELUDE_X86_TARGETS

PRELUDE_REGION("avx2,fma,f16c")
namespace packed_avx2 {
// clang-format off: the order matters
#include "prelude/cpu/lanes_avx2.hpp"
#include "prelude/cpu/body_rows.hpp"
#include "prelude/cpu/dots_avx2.hpp"
#include "prelude/cpu/body_packed.hpp"
// clang-format on
PRELUDE_TABLES("avx2", Int8Dot, FewSums)
}  // namespace packed_avx2
PRELUDE_REGION_END

PRELUDE_REGION("avx512f,avx512bw,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")
namespace packed_avx512 {
// clang-format off: the order matters
#include "prelude/cpu/lanes_avx512.hpp"
#include "prelude/cpu/body_rows.hpp"
#include "prelude/cpu/dots_avx512.hpp"
#include "prelude/cpu/body_packed.hpp"
#ifdef PRELUDE_AMX
#include "prelude/cpu/dots_amx.hpp"
#endif
// clang-format on
PRELUDE_TABLES("avx512", Int8Dot, Int8Dot)
const PackedKernels kBf16 = packed_table<Bf16Dot>("avx512");
#ifdef PRELUDE_AMX
const PackedKernels kPairTiles = pair_tiles(std::make_integer_sequence<int, kMostPackedRows>{});
#endif
}  // namespace packed_avx512
PRELUDE_REGION_END

#endif  // PRELUDE_X86_TARGETS

#ifdef PRELUDE_NEON
namespace packed_neon {
// clang-format off: the order matters
#include "prelude/cpu/lanes_neon.hpp"
#include "prelude/cpu/body_rows.hpp"
#include "prelude/cpu/dots_neon.hpp"
#include "prelude/cpu/body_packed.hpp"
// clang-format on
PRELUDE_TABLES("neon", Int8Sums<false>, Int8Sums<false>)
const PackedKernels kInt8Dot = packed_table<Int8Sums<true>>("neon_dot");
const PackedKernels kFourDot = packed_table<FewDot<Int8Sums<true>, Packing::q4_k>>("neon_dot");
const PackedKernels kSixDot = packed_table<FewDot<Int8Sums<true>, Packing::q6_k>>("neon_dot");
}  // namespace packed_neon
#endif

namespace {

constexpr int64_t kPieceWork = 1 << 20;      // products of a piece, at least: some ten microseconds
constexpr int64_t kPieceWords = 64 << 10;    // of weights of a piece that are enough with fewer products
constexpr int64_t kPieceInputs = 416 << 10;  // bytes of x that a piece reads for each group, at most
constexpr int64_t kPieceValues = 1 << 18;    // of a weight that a piece packs
constexpr int64_t kPieceSums = 256 << 10;    // floats that wait for the next part of a row, at most
constexpr int64_t kOwnWords = 1 << 18;       // of rows that threads prepare for themselves, all together, at most
constexpr int64_t kOpenBlocks = 6;           // of rows, at least, that are worth opening a group of few bits

// One block of one output: `words` and `scale` are its first ones.
void write_block(const int8_t* integers, uint16_t scale, uint32_t* words, uint16_t* to_scale) {
  for (int w = 0; w < kBlockWords; ++w) {
    uint8_t four[4];
    for (int b = 0; b < 4; ++b) four[b] = static_cast<uint8_t>(128 + integers[4 * w + b]);
    std::memcpy(words + w * kGroup, four, 4);
  }
  *to_scale = scale;
}

struct BlockOf {  // of an output in a packed weight of int8
  uint32_t* words;
  uint16_t* scale;

  BlockOf(uint32_t* all, int64_t inputs, int64_t output, int64_t block)
      : words(all + output / kGroup * group_words(inputs, Packing::int8) + block * kBlockGroupWords),
        scale(reinterpret_cast<uint16_t*>(words + kBlockWords * kGroup) + output % kGroup) {
    words += output % kGroup;
  }
};

template <class Value>
void pack_int8(const Value* weight, int64_t inputs, int64_t output, uint32_t* words) {
  for (int64_t block = 0; block < blocks_of(inputs); ++block) {
    const int64_t first = block * kBlock, count = std::min<int64_t>(kBlock, inputs - first);
    float values[kBlock] = {};
    for (int64_t i = 0; i < count; ++i) values[i] = as_float(weight[first + i]);
    int8_t integers[kBlock];
    const uint16_t half = quantize_block(values, integers);
    const BlockOf to(words, inputs, output, block);
    write_block(integers, half, to.words, to.scale);
  }
}

// Input 0 of an output of float16; the next ones lie kGroup values apart.
uint16_t* f16_column(uint32_t* words, int64_t inputs, int64_t output) {
  return reinterpret_cast<uint16_t*>(words + output / kGroup * group_words(inputs, Packing::f16)) + output % kGroup;
}

// Zeros in the group that outputs [first, last) begin and do not fill: those behind the last have no weights.
void pack_nothing(int64_t first, int64_t last, int64_t inputs, Packing packing, uint32_t* words) {
  const int64_t group = last / kGroup;
  if (last % kGroup != 0 && group * kGroup >= first)
    std::fill_n(words + group * group_words(inputs, packing), group_words(inputs, packing), 0);
}

#ifdef PRELUDE_X86_TARGETS
// clang 14 has no name for it in __builtin_cpu_supports.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#ifdef PRELUDE_AMX
// Linux gives the tiles to a process that asks.
bool has_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBits = 1u << 22 | 1u << 24;  // of bfloat16, tiles
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBits) != kBits) return false;
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  static const bool given = syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  return given;
}
#endif
#elif defined(PRELUDE_NEON)
bool has_dot() {
#if defined(__ARM_FEATURE_DOTPROD)
  return true;  // the build is for such processors alone
#elif defined(__linux__)
  return (getauxval(AT_HWCAP) & (1u << 20)) != 0;  // HWCAP_ASIMDDP
#else
  return false;
#endif
}
#endif

bool supported(const char* name, Packing packing) {
#ifdef PRELUDE_X86_TARGETS
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  if (std::strcmp(name, "avx2") == 0) return avx2;
#ifdef PRELUDE_AMX
  if (std::strcmp(name, "amx") == 0) return packing == Packing::bf16 && supported("avx512", packing) && has_tiles();
#endif
  if (std::strcmp(name, "avx512") == 0) {
    if (!avx2 || !__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl"))
      return false;
    if (quantizes(packing)) return __builtin_cpu_supports("avx512vnni");
    return packing != Packing::bf16 || __builtin_cpu_supports("avx512bf16");
  }
#elif defined(PRELUDE_NEON)
  if (std::strcmp(name, "neon") == 0) return true;
  if (std::strcmp(name, "neon_dot") == 0) return quantizes(packing) && has_dot();
#endif
  return std::strcmp(name, "portable") == 0;
}

// Outputs [first, last) of a packed weight; `weight` is the first one's row.
template <class Value>
void pack_outputs(const Value* weight, int64_t stride, int64_t first, int64_t last, int64_t inputs, Packing packing,
                  uint32_t* words) {
  const PackedKernels& kernels = *best_packed_kernels(Packing::widened);
  const int64_t of_group = group_words(inputs, packing);
  // A float of a word stays as it is, as does a pair of bfloat16: these are turned by vectors.
  constexpr bool kPairs = sizeof(Value) == 2;
  const bool turned = packing == Packing::f16 || (packing != Packing::int8 && (packing == Packing::f32) != kPairs);
  for (int64_t output = first; output < last;) {
    uint32_t* to = words + output / kGroup * of_group + output % kGroup;
    uint16_t* column = f16_column(words, inputs, output);
    if (turned && output % kernels.lanes == 0 && output + kernels.lanes <= last) {
      if constexpr (!kPairs)
        kernels.pack_floats(weight, stride, inputs, to);
      else if (packing == Packing::f16)
        kernels.pack_halves(weight, stride, inputs, column);
      else
        kernels.pack_pairs(weight, stride, inputs, to);
      output += kernels.lanes, weight += kernels.lanes * stride;
      continue;
    }
    if (packing == Packing::int8)
      pack_int8(weight, inputs, output, words);
    else if (packing == Packing::f16)
      for (int64_t i = 0; i < inputs; ++i) column[i * kGroup] = static_cast<uint16_t>(weight[i]);
    else if (packing == Packing::f32)
      packed_portable::copy_values(weight, inputs, to, kGroup);
    else
      packed_portable::copy_pairs(weight, inputs, to, kGroup);
    ++output, weight += stride;
  }
}

template <class Value>
void pack_all(const Value* weight, int64_t stride, int64_t outputs, int64_t inputs, Packing packing, uint32_t* words,
              int64_t first, int threads) {
  const int64_t last = first + outputs, begin = first / kGroup, groups = (last + kGroup - 1) / kGroup - begin;
  const int64_t each = std::max<int64_t>(1, kPieceValues / (std::max<int64_t>(1, inputs) * kGroup));
  const int64_t pieces = (groups + each - 1) / each;
  pack_nothing(first, last, inputs, packing, words);
  run_pieces(static_cast<int>(std::min<int64_t>(threads, pieces)), pieces, [&](int64_t i, int) {
    const int64_t from = std::max(first, (begin + i * each) * kGroup);
    const int64_t to = std::min(last, (begin + (i + 1) * each) * kGroup);
    pack_outputs(weight + (from - first) * stride, stride, from, to, inputs, packing, words);
  });
}

}  // namespace

void pack_weight(const float* weight, int64_t stride, int64_t outputs, int64_t inputs, Packing packing,
                 uint32_t* words, int64_t first, int threads) {
  pack_all(weight, stride, outputs, inputs, packing, words, first, threads);
}
void pack_weight(const uint16_t* weight, int64_t stride, int64_t outputs, int64_t inputs, Packing packing,
                 uint32_t* words, int64_t first, int threads) {
  pack_all(weight, stride, outputs, inputs, packing, words, first, threads);
}

void prefer_large_pages([[maybe_unused]] void* memory, [[maybe_unused]] size_t count) {
#ifdef MADV_HUGEPAGE
  constexpr uintptr_t kLarge = 2u << 20;
  const auto at = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t first = (at + kLarge - 1) / kLarge * kLarge, last = (at + count) / kLarge * kLarge;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

void pack_q8(const uint8_t* rows, int64_t outputs, int64_t inputs, uint32_t* words) {
  const int64_t blocks = blocks_of(inputs);
  pack_nothing(0, outputs, inputs, Packing::int8, words);
  for (int64_t output = 0; output < outputs; ++output)
    for (int64_t block = 0; block < blocks; ++block) {
      const uint8_t* from = rows + (output * blocks + block) * kQ8Bytes;
      uint16_t scale;
      std::memcpy(&scale, from, 2);
      int8_t integers[kBlock];
      std::memcpy(integers, from + 2, kBlock);
      const BlockOf to(words, inputs, output, block);
      write_block(integers, scale, to.words, to.scale);
    }
}

void pack_few(const uint8_t* rows, int64_t outputs, int64_t inputs, Packing packing, uint32_t* words) {
  const bool six = packing == Packing::q6_k;
  const int64_t bytes = bytes_of_block(six ? BlockKind::q6_k : BlockKind::q4_k), together = inputs / kFewInputs;
  const Few few = few_of(packing);
  const int size = block_inputs(packing);
  pack_nothing(0, outputs, inputs, packing, words);
  for (int64_t output = 0; output < outputs; ++output)
    for (int64_t i = 0; i < together; ++i) {
      const uint8_t* from = rows + (output * together + i) * bytes;
      uint32_t* to = words + (output / kGroup * together + i) * few.all();
      const int64_t lane = output % kGroup;
      for (int scale = 0; scale < few.scales; ++scale)
        std::memcpy(reinterpret_cast<uint16_t*>(to) + scale * kGroup + lane, from + (six ? 208 : 2 * scale), 2);
      for (int block = 0; block < few.blocks; ++block) {
        auto* by = reinterpret_cast<uint8_t*>(to + few.bytes_at()) + block * few.scales * kGroup + lane;
        if (six) {
          *by = from[192 + block];
        } else {
          const SixBits both = six_bits(from + 4, block);
          by[0] = both.scale, by[kGroup] = both.least;
        }
        uint8_t integers[kBlock], made[kBlockWords / 2 * 4] = {};
        for (int j = 0; j < size; ++j)
          integers[j] = six ? q6_k_at(from, block * size + j) : q4_k_at(from, block * size + j);
        for (int j = 0; j < size; ++j) {
          made[j % (size / 2)] |= static_cast<uint8_t>((integers[j] & 15) << (j < size / 2 ? 0 : 4));
          if (six) made[size / 2 + j % 4] |= static_cast<uint8_t>(integers[j] >> 4 << (j / 4 * 2));
        }
        uint32_t* at = to + few.words_at() + block * few.words * kGroup + lane;
        for (int w = 0; w < few.words; ++w) std::memcpy(at + w * kGroup, made + 4 * w, 4);
      }
    }
}

namespace {

// The calling thread's own words: lines that another processor has read take long to write. Null: no memory.
uint32_t* own_room(int64_t count) {
  thread_local std::unique_ptr<uint32_t[]> room;
  thread_local int64_t size = 0;
  if (room == nullptr || count > size) {
    room.reset(new (std::nothrow) uint32_t[static_cast<size_t>(count + kGroup)]);
    size = room == nullptr ? 0 : count;
  }
  return room == nullptr ? nullptr : room.get() + -(reinterpret_cast<uintptr_t>(room.get()) / 4) % 16;
}

// A block of integers of an output: weight i is (bytes[i] - middle) * scale - least.
struct Block {
  uint8_t bytes[kBlock];
  int middle;
  float scale, least = 0;

  template <class Bits>
  void open(const PackedWeight& weight, int64_t output, int64_t block) {
    const auto lane = static_cast<int>(output % kHalf), part = lane / packed_portable::kLanes;
    const int in_part = lane % packed_portable::kLanes;
    Bits bits;
    bits.open(weight.words + output / kGroup * group_words(weight.inputs, weight.packing),
              static_cast<int>(output % kGroup) - lane, block);
    for (int w = 0; w < Bits::kWords; ++w) std::memcpy(bytes + 4 * w, bits.words + w * Bits::kApart + lane, 4);
    scale = bits.scale(part).lane[in_part];
    if (weight.packing == Packing::q4_k) least = bits.least(part).lane[in_part];
  }
  Block(const PackedWeight& weight, int64_t output, int64_t block)
      : middle(weight.packing == Packing::int8   ? 128
               : weight.packing == Packing::q6_k ? 32
                                                 : 0) {
    if (weight.packing == Packing::int8)
      open<packed_portable::EightBits>(weight, output, block);
    else if (weight.packing == Packing::q4_k)
      open<packed_portable::FewBits<Packing::q4_k>>(weight, output, block);
    else
      open<packed_portable::FewBits<Packing::q6_k>>(weight, output, block);
  }
};

}  // namespace

void unpack_output(const PackedWeight& weight, int64_t output, float* to) {
  const int64_t inputs = weight.inputs;
  if (quantizes(weight.packing)) {
    const int size = block_inputs(weight.packing);
    for (int64_t i = 0; i < inputs; i += size) {
      const Block block(weight, output, i / size);
      for (int64_t j = i; j < std::min(inputs, i + size); ++j)
        to[j] = static_cast<float>(block.bytes[j - i] - block.middle) * block.scale - block.least;
    }
    return;
  }
  const uint32_t* words = weight.words + output / kGroup * group_words(inputs, weight.packing) + output % kGroup;
  for (int64_t i = 0; i < inputs; ++i) {
    if (weight.packing == Packing::f32)
      std::memcpy(to + i, words + i * kGroup, 4);
    else if (weight.packing == Packing::f16)
      to[i] = float_of_half(f16_column(const_cast<uint32_t*>(weight.words), inputs, output)[i * kGroup]);
    else
      to[i] = as_float(static_cast<uint16_t>(words[i / 2 * kGroup] >> (16 * (i % 2))));
  }
}

float integer_pair(const PackedWeight& weight, const float* x, int64_t output, uint32_t* room) {
  const int size = block_inputs(weight.packing), words = size / 4;
  if (size == kBlock)
    packed_portable::quantize_row<kBlock>(x, weight.inputs, room);
  else
    packed_portable::quantize_row<kBlock / 2>(x, weight.inputs, room);
  float total = 0;
  for (int64_t b = 0; b < blocks_of(weight.inputs, weight.packing); ++b, room += words + 2) {
    const Block block(weight, output, b);
    int8_t integers[kBlock];
    std::memcpy(integers, room, static_cast<size_t>(size));
    int32_t sum = 0, of_row = 0;
    for (int i = 0; i < size; ++i) sum += (block.bytes[i] - block.middle) * integers[i], of_row += integers[i];
    float scale_of_row;
    std::memcpy(&scale_of_row, room + words + 1, 4);
    const float scaled = static_cast<float>(sum) * block.scale;
    total = std::fma(std::fma(static_cast<float>(-of_row), block.least, scaled), scale_of_row, total);
  }
  return total;
}

const PackedKernels* packed_kernels_named(const char* name, Packing packing) {
  if (!supported(name, packing)) return nullptr;
#ifdef PRELUDE_AMX
  if (std::strcmp(name, "amx") == 0) return &packed_avx512::kPairTiles;
#endif
  const auto at = static_cast<int>(packing);
#ifdef PRELUDE_X86_TARGETS
  if (std::strcmp(name, "avx512") == 0)
    return packing == Packing::bf16 ? &packed_avx512::kBf16 : packed_avx512::kTables[at];
  if (std::strcmp(name, "avx2") == 0) return packed_avx2::kTables[at];
#elif defined(PRELUDE_NEON)
  if (std::strcmp(name, "neon_dot") == 0)
    return packing == Packing::int8   ? &packed_neon::kInt8Dot
           : packing == Packing::q4_k ? &packed_neon::kFourDot
                                      : &packed_neon::kSixDot;
  if (std::strcmp(name, "neon") == 0) return packed_neon::kTables[at];
#endif
  return packed_portable::kTables[at];
}

const PackedKernels* best_packed_kernels(Packing packing) {
  if (const char* chosen = std::getenv("PRELUDE_CPU_KERNELS"))
    if (kernels_named(chosen) != nullptr) return packed_kernels_named(chosen, packing);
  for (const char* name : {"amx", "avx512", "avx2", "neon_dot", "neon", "portable"})
    if (const PackedKernels* found = packed_kernels_named(name, packing)) return found;
  return nullptr;
}

bool pairs_are_quick() {
  const PackedKernels* kernels = best_packed_kernels(Packing::bf16);
  if (kernels == nullptr) return false;
#ifdef PRELUDE_X86_TARGETS
  return std::strcmp(kernels->name, "avx512") != 0 || __builtin_cpu_is("amd");
#else
  return true;
#endif
}

bool packed_matmul(const PackedKernels& kernels, const PackedArgs& a, int threads) {
  if (a.rows < 1 || a.weight.outputs < 1) return true;
  // Blocks of about equal size: 13 rows are seven and six, not twelve and one.
  const int64_t blocks = (a.rows + kernels.most_rows - 1) / kernels.most_rows;
  const int64_t most = (a.rows + blocks - 1) / blocks, words = row_words(a.weight.inputs, kernels.packing);
  // Long rows are cut, so that the weights that several blocks meet stay in the nearest cache.
  const int64_t parts =
      kernels.part_words > 0 && blocks > 1 ? (words + kernels.part_words - 1) / kernels.part_words : 1;
  threads = std::max(threads, 1);
  // Each thread prepares few rows for itself: it would fetch those of another thread no faster.
  const bool own = threads * a.rows * words <= kOwnWords;
  const std::unique_ptr<uint32_t[]> room(own ? nullptr
                                             : new (std::nothrow) uint32_t[static_cast<size_t>(a.rows * words)]);
  if (!own && room == nullptr) return false;
  const PackedRows rows{room.get(), most - 1, a.rows - blocks * (most - 1), parts};
  const int64_t each = (blocks + threads - 1) / threads, shares = own ? 0 : (blocks + each - 1) / each;
  run_pieces(static_cast<int>(shares), shares,
             [&](int64_t i, int) { kernels.prepare(a, rows, i * each, std::min(blocks, (i + 1) * each)); });

  const int64_t groups = (a.weight.outputs + kGroup - 1) / kGroup;
  const int64_t part_words = (words + parts - 1) / parts;
  const int64_t together = std::max<int64_t>(1, kPieceInputs / (most * part_words * 4));
  const int64_t row_pieces = (blocks + together - 1) / together, at_once = (blocks + row_pieces - 1) / row_pieces;
  // Groups of a piece: enough products or weights, an even number for kernels of few rows, as many for each thread.
  const int64_t work = at_once * most * a.weight.inputs * kGroup, one = group_words(a.weight.inputs, kernels.packing);
  const int64_t enough = std::min((kPieceWork - 1) / work, (kPieceWords - 1) / one) + 1;
  const int64_t all = threads * std::clamp<int64_t>(groups / (enough * threads), 1, 4);
  int64_t step = threads == 1 ? groups : (std::max(enough, (groups - 1) / all + 1) + 1) / 2 * 2;
  // Each thread's room: its rows, and sums between parts or an opened group.
  const int64_t of_group = at_once * most * kGroup, of_rows = own ? (a.rows * words + 15) / 16 * 16 : 0;
  if (parts > 1) step = std::min(step, std::max<int64_t>(2, kPieceSums / of_group / 2 * 2));
  const bool opens = kernels.open != nullptr && blocks >= kOpenBlocks;
  const int64_t of_thread = opens ? words * kGroup : parts > 1 ? step * of_group : 0;
  const int64_t group_pieces = (groups + step - 1) / step, pieces = group_pieces * row_pieces;
  // Turns of a thread are pieces in a row, as long as the threads take turns: so a thread's next weights are fetched.
  const int64_t team = std::min<int64_t>(threads, pieces), share = pieces / team, rest = pieces % team;
  std::atomic<int64_t> next{0};
  run_pieces(static_cast<int>(team), team, [&](int64_t, int) {
    PackedRows mine = rows;
    uint32_t* const of_own = next.load(std::memory_order_relaxed) < pieces ? own_room(of_rows + of_thread) : nullptr;
    if (of_own == nullptr) return;
    if (own) mine.words = of_own, kernels.prepare(a, mine, 0, blocks);
    auto* const sums = of_thread > 0 ? reinterpret_cast<float*>(of_own + of_rows) : nullptr;
    for (int64_t turn; (turn = next.fetch_add(1, std::memory_order_relaxed)) < pieces;) {
      const int64_t i = turn % team * share + std::min(turn % team, rest) + turn / team;
      const int64_t block = i / group_pieces * at_once, behind = std::min(blocks, block + at_once);
      const int64_t last = std::min(groups, (i % group_pieces + 1) * step);
      const int64_t some = opens ? 1 : step;  // an opened group is the only one
      for (int64_t group = i % group_pieces * step; group < last; group += some) {
        if (opens) kernels.open(a, group, sums);
        kernels.multiply[most - 1](a, mine, block, behind, group, std::min(last, group + some), sums);
      }
    }
  });
  return next.load(std::memory_order_relaxed) >= pieces;
}

}  // namespace prelude::cpu
