// How an entry goes over the rows of a block: its arrays are placed once, then it takes the rows tile
// by tile.
#pragma once
#include "loops.h"
#include "vectors.hpp"
#include <stdlib.h>
#if defined(DASKMM_GUARDED_ARRAYS)  // sanitizers report reads beyond an array
#include <sanitizer/asan_interface.h>
#define LEAST_GAP 4096
#else
#define LEAST_GAP 64
#define ASAN_POISON_MEMORY_REGION(start, size)
#define ASAN_UNPOISON_MEMORY_REGION(start, size)
#endif

namespace {

// Arrays of one call, filled with zeros and aligned to cache lines, at least a line apart. `place` is
// called twice with the same arrays: to add up their sizes, and to set them.
class Memory {
 public:
  template <class Place> bool allocate(Place place) {
    place(*this);
    held_ = (char*)calloc(1, used_ + LINE);
    if (!held_) return false;
    start_ = (char*)(((uintptr_t)held_ + LINE - 1) & ~uintptr_t(LINE - 1));
    used_ = 0;
    placing_ = true;
    place(*this);
    return true;
  }
  // Arrays of n numbers each.
  template <class... T> void operator()(Index n, T*&... arrays) { (place_one(n, arrays), ...); }
  ~Memory() {
    ASAN_UNPOISON_MEMORY_REGION(start_, used_);
    free(held_);
  }

 private:
  static constexpr size_t LINE = 64;

  template <class T> void place_one(Index n, T*& array) {
    const size_t size = size_t(n) * sizeof(T), room = (size + LEAST_GAP + LINE - 1) / LINE * LINE;
    if (placing_) {
      array = (T*)(start_ + used_);
      ASAN_POISON_MEMORY_REGION(start_ + used_ + size, room - size);
    }
    used_ += room;
  }

  char *held_ = nullptr, *start_ = nullptr;
  size_t used_ = 0;
  bool placing_ = false;
};

// Defaults for what an entry need not define.
struct Entry {
  void begin() {}
  void finish() {}
};
// `add(start, b)` takes b rows, and returns whether they are finite.
template <class Work> int run(Work& work, Index n, Index tile) {
  Memory memory;
  if (!memory.allocate([&](Memory& m) { work.place(m); })) return OUT_OF_MEMORY;
  work.begin();
  for (Index start = 0; start < n; start += tile)
    if (!work.add(start, tile < n - start ? tile : n - start)) return NOT_FINITE;
  work.finish();
  return DONE;
}

// Write the sample weights of some rows.
template <class A> INLINE void copy_weights(const A& a, Index start, Index b, double* v) {
  for (Index i = 0; i < b; i++) v[i] = a.weights ? a.weights[start + i] : 1.0;
}

}  // namespace
