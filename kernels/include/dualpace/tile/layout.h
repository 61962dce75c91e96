// The tile layer: eight tiles of up to 16 rows of 64 bytes. What the implementations of it share.
//
// Each implementation is a class with the same operations; its objects own the thread's tiles.
//   configure(layout)  gives the tiles their shapes, and zeros them
//   zero<t>()
//   load<t>(from, stride), store<t>(to, stride)   rows that lie `stride` bytes apart
//   dot<c, a, b>()     c[m][n] += sum over k of a[m][k] . b[k][n], where a and b hold pairs of
//                      bfloat16 and c floats
// The destructor releases the tiles.
//
// Rounding, as Intel's manual gives it (volume 2, TDPBF16PS): the products of first elements of the
// pairs are added up from zero in the order of k, each by one fused operation; those of second
// elements likewise; the two sums are added, and that is added to c. All in fp32 to nearest, ties
// to even; subnormal inputs and results are zeros, whatever the thread's own mode.
#pragma once

#include <cstdint>

namespace dualpace {
namespace {

constexpr int kTiles = 8;
constexpr int kTileRows = 16;
constexpr int kTileRowBytes = 64;
// Elements of one full row.
constexpr int kTileFloats = kTileRowBytes / 4;
constexpr int kTileBFloats = kTileRowBytes / 2;

// Shapes of the tiles, as LDTILECFG reads them (the same manual, palette 1).
struct alignas(64) TileLayout {
    std::uint8_t palette = 1;
    std::uint8_t start_row = 0;
    std::uint8_t reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};

    // A tile without rows is not used.
    void shape(int tile, std::int64_t tile_rows, std::int64_t tile_row_bytes) {
        rows[tile] = static_cast<std::uint8_t>(tile_rows);
        row_bytes[tile] = static_cast<std::uint16_t>(tile_rows == 0 ? 0 : tile_row_bytes);
    }
};
static_assert(sizeof(TileLayout) == 64);

}  // namespace
}  // namespace dualpace
