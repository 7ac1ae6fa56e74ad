// Vectors that change from the heap to pages of their own as they grow, at the sizes where that happens.
#include <cstdint>
#include <utility>

#include "check.hpp"
#include "memory/scratch_vector.hpp"

using namespace fasttoken;

namespace {

constexpr size_t mega = size_t{1} << 20;

void growing_keeps_what_is_there() {
  for (size_t end : {mega / 4 - 1, mega / 4, mega / 4 + 1, mega / 2 - 1, mega / 2, mega / 2 + 1, mega + 7}) {
    ScratchVector<uint32_t> one_by_one, moved, copied;
    for (uint32_t i = 0; i < end; ++i) one_by_one.push_back(i * 7);
    copied = one_by_one;
    moved = std::move(one_by_one);
    copied.resize(end + 3);  // the last three are anything
    copied.resize(end);
    CHECK(moved.size() == end && copied == moved);
    size_t wrong = 0;
    for (uint32_t i = 0; i < end; ++i) wrong += moved[i] != i * 7;
    CHECK(wrong == 0);
    moved.shrink_to_fit();
    moved.insert(moved.begin() + 5, end, 9);
    CHECK(moved.size() == 2 * end && moved[4] == 28 && moved[5] == 9 && moved[5 + end] == 35);
  }
}

// Of every size around where memory is mapped and where one more page is: all of it can be written.
void all_of_the_room_is_there() {
  for (size_t around : {mega, 2 * mega, 4 * mega})
    for (size_t bytes = around - 2; bytes <= around + 2; ++bytes) {
      ScratchVector<char> some(bytes);
      some.front() = 1;
      some.back() = 2;
      CHECK(some[0] == 1 && some[bytes - 1] == 2);
#ifdef __linux__
      if (bytes >= mega) CHECK(reinterpret_cast<uintptr_t>(some.data()) % (2 * mega) == 0);
#endif
    }
}

void ids_past_what_is_kept() {
  IdBuffer ids;
  for (int round = 0; round < 2; ++round) {
    for (int32_t i = 0; i < 600'000; ++i) {
      if (i % 1000 == 0) {
        int32_t* at = ids.room(3);
        CHECK(at + 3 <= ids.limit());
      }
      ids.push_back(i);
    }
    size_t wrong = 0;
    for (int32_t i = 0; i < 600'000; ++i) wrong += ids.data()[i] != i;
    CHECK(ids.size() == 600'000 && wrong == 0);
    ids.clear();
    CHECK(ids.size() == 0 && ids.limit() - ids.data() <= 1 << 18);
  }
}

}  // namespace

int main() {
  growing_keeps_what_is_there();
  all_of_the_room_is_there();
  ids_past_what_is_kept();
  return finish("scratch");
}
