// The two sides of a mixer in one call each: bit for bit what the kernels give when each is called by itself, on
// every target, for every packing, in chunks, and in several threads, which share each operation of a few rows and
// take rows apart where there are many.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "check.hpp"
#include "prelude/cpu/mixer_sides.hpp"
#include "random_values.hpp"

using namespace prelude::cpu;

namespace {

constexpr int64_t kHidden = 40, kWidth = 8, kHeads = 4, kGates = 2, kInner = 50, kRows = 41;

// Rows of float32 or bfloat16, `stride` values apart.
struct Rows {
  int64_t stride;
  Type type;
  std::vector<char> bytes;

  Rows(int64_t rows, int64_t stride, Type type)
      : stride(stride), type(type), bytes(static_cast<size_t>(rows * stride * size_of(type)), 0x11) {}
  Rows(Random& random, int64_t rows, int64_t stride, Type type) : Rows(rows, stride, type) {
    for (int64_t i = 0; i < rows * stride; ++i) {
      const float value = uniform(random);
      const uint16_t half = to_bf16(value);
      if (type == Type::f32)
        std::memcpy(bytes.data() + 4 * i, &value, 4);
      else
        std::memcpy(bytes.data() + 2 * i, &half, 2);
    }
  }
  void* at(int64_t row) { return bytes.data() + row * stride * size_of(type); }
};

struct Weight {
  std::vector<float> bias;
  std::vector<uint32_t> words;
  Projection projection;

  Weight(Random& random, const char* name, int64_t outputs, int64_t inputs, Packing packing)
      : bias(floats(random, outputs)),
        words(static_cast<size_t>(packed_words(outputs, inputs, packing))),
        projection{packed_kernels_named(name, packing), {words.data(), bias.data(), inputs, outputs, packing}} {
    const std::vector<float> values = floats(random, outputs * inputs, 0.3f);
    std::vector<uint16_t> halves;
    for (float value : values)
      halves.push_back(packing == Packing::f16 ? static_cast<uint16_t>(random.below(0x3400)) : to_bf16(value));
    if (packing == Packing::f32 || packing == Packing::int8)
      pack_weight(values.data(), inputs, outputs, inputs, packing, words.data());
    else
      pack_weight(halves.data(), inputs, outputs, inputs, packing, words.data());
  }
};

struct Factors {
  std::vector<float> gain, bias;
  Norm norm;

  Factors(Random& random, int64_t width, NormKind kind) : gain(floats(random, width)), bias(floats(random, width)) {
    norm = {kind, 1e-5f, gain.data(), kind == NormKind::layer ? bias.data() : nullptr};
  }
};

// Each kernel by itself, over all rows at once.
struct Apart {
  const Kernels& kernels;

  void norm(const Norm& by, const void* x, int64_t x_stride, void* out, int64_t out_stride, Type type,
            int64_t width) {
    const NormArgs args{
        static_cast<const float*>(x), x_stride, by.gain, by.bias, out, out_stride, type, width, by.eps};
    CHECK(by.kind == NormKind::layer ? layer_norm(kernels, args, kRows, 1) : rms_norm(kernels, args, kRows, 1));
  }
  void product(const Projection& by, Rows& x, Rows& out, bool adds) {
    const PackedArgs args{by.weight, x.at(0), out.at(0), x.stride, out.stride, kRows, x.type, out.type, adds};
    CHECK(packed_matmul(*by.kernels, args, 1));
  }
};

void check_before(const Kernels& kernels, Packing packing, NormKind kind, Type type) {
  Random random{static_cast<uint64_t>(packing) * 100 + static_cast<uint64_t>(kind) * 10 +
                static_cast<uint64_t>(type)};
  constexpr int64_t kOutputs = (kGates + kHeads) * kWidth;
  const Weight weight(random, kernels.name, kOutputs, kHidden, packing);
  if (weight.projection.kernels == nullptr) return;
  const Factors factors(random, kHidden, kind);
  const std::vector<float> gain = floats(random, kHeads * kWidth), table = floats(random, kRows * kWidth);
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < kRows; ++i) positions.push_back(random.below(kRows));
  Rows x(random, kRows, kHidden + 3, Type::f32), wanted(kRows, kOutputs + 5, type), normed(kRows, kHidden, type);

  Apart apart{kernels};
  if (kind != NormKind::none) apart.norm(factors.norm, x.at(0), x.stride, normed.at(0), kHidden, type, kHidden);
  apart.product(weight.projection, kind == NormKind::none ? x : normed, wanted, false);
  char* turning = wanted.bytes.data() + kGates * kWidth * size_of(type);
  const RotateArgs rotate{turning, wanted.stride, turning,      wanted.stride,   type, gain.data(), kHeads,
                          kWidth,  1e-6f,         table.data(), positions.data()};
  CHECK(norm_rotate(kernels, rotate, kRows, 1));

  const BeforeMixer part{kind == NormKind::none ? Norm{} : factors.norm,
                         weight.projection,
                         {kGates * kWidth, kHeads, kWidth, 1e-6f, gain.data()}};
  for (const int64_t chunk : {int64_t{1}, int64_t{5}, int64_t{30}, kRows, kRows + 9})
    for (const int threads : {1, 3}) {
      Rows out(kRows, kOutputs + 5, type), room(std::min(chunk, kRows), kHidden, type);
      const BeforeArgs args{static_cast<float*>(x.at(0)),
                            x.stride,
                            kRows,
                            chunk,
                            room.at(0),
                            out.at(0),
                            out.stride,
                            type,
                            table.data(),
                            positions.data()};
      CHECK(run_before(part, args, {&kernels, threads}));
      CHECK(out.bytes == wanted.bytes);
    }
}

void check_behind(const Kernels& kernels, Packing packing, bool norm_first, bool after, bool gated, Type type) {
  Random random{static_cast<uint64_t>(packing) * 100 + norm_first * 10u + after * 5u + gated * 3u};
  constexpr int64_t kMixed = kHeads * kWidth;
  const Weight out(random, kernels.name, kHidden, kMixed, packing);
  if (out.projection.kernels == nullptr) return;
  const Weight up(random, kernels.name, gated ? 2 * kInner : kInner, kHidden, packing);
  const Weight down(random, kernels.name, kHidden, kInner, packing);
  const Factors first(random, kHidden, NormKind::layer), second(random, kHidden, NormKind::rms);
  const Factors third(random, kHidden, NormKind::rms), fourth(random, kHidden, NormKind::layer);
  const Rows given(random, kRows, kHidden + 2, Type::f32);
  Rows mixed(random, kRows, kMixed + 1, type);

  Rows x = given, normed(kRows, kHidden, type), wide(kRows, 2 * kInner + 3, type), made(kRows, kHidden, Type::f32);
  Apart apart{kernels};
  const auto add = [&](const Projection& by, const Norm& norm, Rows& from) {
    if (!after) return apart.product(by, from, x, true);
    apart.product(by, from, made, false);
    apart.norm(norm, made.at(0), kHidden, made.at(0), kHidden, Type::f32, kHidden);
    for (int64_t row = 0; row < kRows; ++row)
      for (int64_t i = 0; i < kHidden; ++i)
        static_cast<float*>(x.at(row))[i] += static_cast<const float*>(made.at(row))[i];
  };
  add(out.projection, third.norm, mixed);
  if (norm_first)
    apart.norm(second.norm, x.at(0), x.stride, normed.at(0), kHidden, type, kHidden);
  else
    apart.norm(first.norm, x.at(0), x.stride, x.at(0), x.stride, Type::f32, kHidden);
  apart.product(up.projection, norm_first ? normed : x, wide, false);
  const ActivateArgs activation{wide.at(0), wide.stride, type, kInner, Activation::gelu, gated};
  CHECK(activate(kernels, activation, kRows, 1));
  add(down.projection, fourth.norm, wide);
  if (!norm_first) apart.norm(second.norm, x.at(0), x.stride, x.at(0), x.stride, Type::f32, kHidden);

  const Norm none{};
  const BehindMixer part{out.projection,
                         up.projection,
                         down.projection,
                         norm_first ? none : first.norm,
                         second.norm,
                         after ? third.norm : none,
                         after ? fourth.norm : none,
                         norm_first,
                         gated,
                         Activation::gelu};
  for (const int64_t chunk : {int64_t{1}, int64_t{6}, int64_t{30}, kRows})
    for (const int threads : {1, 3}) {
      Rows sums = given, room(chunk, kHidden, type), inner(chunk, 2 * kInner + 3, type);
      Rows product(chunk, kHidden, Type::f32);
      BehindArgs args{static_cast<float*>(sums.at(0)),
                      sums.stride,
                      mixed.at(0),
                      mixed.stride,
                      type,
                      kRows,
                      chunk,
                      room.at(0),
                      inner.at(0),
                      inner.stride,
                      nullptr,
                      type};
      if (after) args.sums = static_cast<float*>(product.at(0));
      CHECK(run_behind(part, args, {&kernels, threads}));
      CHECK(sums.bytes == x.bytes);
    }
}

}  // namespace

int main() {
  for (const char* name : kKernelNames) {
    const Kernels* kernels = kernels_named(name);
    if (kernels == nullptr) continue;
    for (const Packing packing : {Packing::f32, Packing::bf16, Packing::int8, Packing::widened, Packing::f16})
      for (const Type type : {Type::f32, Type::bf16}) {
        for (const NormKind kind : {NormKind::none, NormKind::rms, NormKind::layer})
          check_before(*kernels, packing, kind, type);
        for (const bool norm_first : {true, false})
          for (const bool after : {true, false})
            for (const bool gated : {true, false}) check_behind(*kernels, packing, norm_first, after, gated, type);
      }
  }
  std::puts("mixer sides: ok");
}
