// Memory that threads take and give at once is never two threads' at a time, and none is lost.
#include <cstring>
#include <thread>
#include <vector>

#include "check.hpp"
#include "prelude/chunks.hpp"

using namespace prelude;

static void one_thread() {
  ChunkPool pool;
  Chunk* a = pool.take(40'000);
  CHECK(a != nullptr && a->capacity == 65'536 && reinterpret_cast<uintptr_t>(a->data) % 64 == 0);
  void* const data = a->data;
  pool.give(a);
  Chunk* b = pool.take(1'000'000);  // the one that is there is too small
  CHECK(b->data != data);
  Chunk* c = pool.take(20'000);
  CHECK(c->data == data);
  pool.give(b);
  Chunk* d = pool.take(1000);  // b's is too large for so little
  CHECK(d->capacity == ChunkPool::kSmallest);
  pool.give(c), pool.give(d);
  pool.give(pool.take(3 * ChunkPool::kLargest));  // goes back to the system: the sanitizer sees that it is not lost
  std::vector<Chunk*> many;
  for (int i = 0; i < 2 * ChunkPool::kPlaces; ++i) many.push_back(pool.take(50'000));
  for (Chunk* one : many) pool.give(one);
}

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5'000;
  one_thread();
  ChunkPool pool;
  auto work = [&](unsigned char me) {
    Random random{me};
    std::vector<Chunk*> mine;
    for (int i = 0; i < rounds; ++i) {
      if (mine.size() < 4 && random.chance(60)) {
        Chunk* chunk = pool.take(static_cast<size_t>(1 + random.below(200'000)));
        std::memset(chunk->data, me, 64);
        mine.push_back(chunk);
      } else if (!mine.empty()) {
        CHECK(*static_cast<unsigned char*>(mine.back()->data) == me);
        pool.give(mine.back());
        mine.pop_back();
      }
    }
    for (Chunk* chunk : mine) pool.give(chunk);
  };
  std::vector<std::thread> threads;
  for (unsigned char me = 1; me <= 3; ++me) threads.emplace_back(work, me);
  for (auto& thread : threads) thread.join();
  return 0;
}
