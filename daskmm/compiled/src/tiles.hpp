// Products in the tiles of AMX, matrices of 16 lines of 64 bytes that eight registers hold.
#pragma once
#include <stddef.h>
#include <stdint.h>

// Linux gives a process the tiles when it asks for them.
#if defined(__linux__) && defined(__x86_64__) && !defined(DASKMM_EMULATED_AVX512) && \
    (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define HAVE_TILES 1
#include <immintrin.h>
#else
#define HAVE_TILES 0
#endif

namespace {

constexpr ptrdiff_t TILE_SIDE = 16;
constexpr int IN_TILES = 2;  // value of `Step.rounded`

#if HAVE_TILES
struct alignas(64) TileShapes {
  uint8_t palette, start, unused[14];
  uint16_t bytes[16];
  uint8_t lines[16];
};
constexpr TileShapes TILE_SHAPES = {
    1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

// Write the products of whole groups of centres with b rows to lines (centre, row). Centres are in
// tiles, rows in panels (n_pairs, 48); both are pairs of bfloat16.
__attribute__((noinline, target("amx-tile,amx-bf16"))) inline void tile_products(
    const float* centers, ptrdiff_t n_groups, const float* panels, ptrdiff_t n_pairs, ptrdiff_t b,
    float* lines, ptrdiff_t rows) {
  constexpr ptrdiff_t SIDE = TILE_SIDE, WIDE = 3 * SIDE, BYTES = sizeof(float);
  _tile_loadconfig(&TILE_SHAPES);
  for (ptrdiff_t i = 0; i < b; i += WIDE)
    for (ptrdiff_t group = 0; group < n_groups; group++) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      for (ptrdiff_t q = 0; q < n_pairs; q += SIDE) {
        const float* panel = panels + i * n_pairs + q * WIDE;
        _tile_loadd(3, centers + (group * n_pairs + q) * SIDE, SIDE * BYTES);
        _tile_loadd(4, panel, WIDE * BYTES);
        _tile_dpbf16ps(0, 3, 4);
        _tile_loadd(5, panel + SIDE, WIDE * BYTES);
        _tile_dpbf16ps(1, 3, 5);
        _tile_loadd(6, panel + 2 * SIDE, WIDE * BYTES);
        _tile_dpbf16ps(2, 3, 6);
      }
      float* out = lines + group * SIDE * rows + i;
      _tile_stored(0, out, rows * BYTES);
      _tile_stored(1, out + SIDE, rows * BYTES);
      _tile_stored(2, out + 2 * SIDE, rows * BYTES);
    }
  _tile_release();
}
#endif

}  // namespace
