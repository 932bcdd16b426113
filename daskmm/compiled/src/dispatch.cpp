// The public entries: each calls the loops of the wanted instruction set.
#include "loops.h"
#include "tiles.hpp"
#if HAVE_TILES
#include <sys/syscall.h>
#include <unistd.h>
#endif

// Levels: 0 baseline, 1 AVX2 with FMA, 2 AVX-512 (F, DQ, BW, VL), 3 AVX-512 and tiles of AMX.
#if defined(__x86_64__) && !defined(DASKMM_EMULATED_AVX512)
#include <cpuid.h>

// Tiles, and products of bfloat16 in them.
static const unsigned TILES = 1u << 24 | 1u << 22;
// Ask for the state of the tiles, for all threads of the process; Linux does not give it unasked.
static bool may_use_tiles() {
#if HAVE_TILES
  const int request = 0x1023, tile_data = 18;
  return syscall(SYS_arch_prctl, request, tile_data) == 0;
#else
  return false;
#endif
}

// __builtin_cpu_supports is not used: it answers no to everything where Zig has linked the library.
static int highest_level() {
  unsigned a, b, c, d, low, high;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
  const bool fma = c >> 12 & 1, saves_registers = c >> 27 & 1;
  if (!fma || !saves_registers) return 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  const bool saves_ymm = (low & 0x6) == 0x6, saves_zmm = (low & 0xe6) == 0xe6;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !saves_ymm || !(b >> 5 & 1)) return 0;
  const unsigned needed = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
  if (!saves_zmm || (b & needed) != needed) return 1;
  return (d & TILES) == TILES && (low & 0x60000) == 0x60000 && may_use_tiles() ? 3 : 2;
}

#define ENTRY(name, Type)                                                \
  extern "C" int daskmm_##name##_baseline(const Type*);                  \
  extern "C" int daskmm_##name##_avx2(const Type*);                      \
  extern "C" int daskmm_##name##_avx512(const Type*);                    \
  extern "C" DASKMM_PUBLIC int daskmm_##name(int level, const Type* a) { \
    return level >= 2   ? daskmm_##name##_avx512(a)                      \
           : level == 1 ? daskmm_##name##_avx2(a)                        \
                        : daskmm_##name##_baseline(a);                   \
  }
#else
static int highest_level() { return 0; }
#define ENTRY(name, Type)                               \
  extern "C" int daskmm_##name##_baseline(const Type*); \
  extern "C" DASKMM_PUBLIC int daskmm_##name(int, const Type* a) { return daskmm_##name##_baseline(a); }
#endif
DASKMM_ENTRIES(ENTRY)

extern "C" DASKMM_PUBLIC int daskmm_highest_level() { return highest_level(); }
extern "C" DASKMM_PUBLIC int daskmm_version() { return DASKMM_VERSION; }
// Size of the structure of the entry in this place.
extern "C" DASKMM_PUBLIC int daskmm_size(int which) {
#define SIZE(name, Type) sizeof(Type),
  const int sizes[] = {DASKMM_ENTRIES(SIZE)};
  return which >= 0 && which < int(sizeof(sizes) / sizeof(int)) ? sizes[which] : 0;
}
