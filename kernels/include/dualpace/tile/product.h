// Products of rows with two panels of bfloat16 weights on tiles.
//
// Two tiles of rows by two of weights give four of sums; with two tiles for rows and two for
// weights that is all eight, and each tile that is loaded is used twice. The inner dimension is cut
// into stretches whose weights stay in the first cache while all rows pass over them; sums wait in
// memory meanwhile, which rounds nothing. While the first rows pass, the next stretch is fetched.
#pragma once

#include <cstdint>

#include "dualpace/tile/few_rows.h"
#include "dualpace/tile/layout.h"
#include "dualpace/tile_kernels.h"

namespace dualpace {
namespace {

static_assert(kTileInputs == kTileBFloats && kPanelOutputs == kTileFloats);
static_assert(kLeastTileRows <= kFewRows + 1, "the vectors take up to kFewRows rows");

// Rows of one pair of tiles.
constexpr std::int64_t kPairRows = 2 * kTileRows;
// Inputs of one stretch: 32 KiB of weights in two panels.
constexpr std::int64_t kTileStretch = 512;

// Up to kPairRows rows over one stretch.
struct TileBlock {
    const BFloat16* x;
    std::int64_t x_stride;
    WeightPair pair;
    std::int64_t inputs;  // a multiple of kTileInputs
    std::int64_t rows;
    bool first_stretch;
    float* tile;
};

// Tiles 0 to 3 are sums (upper rows, lower rows; each for both panels), 4 and 5 rows, 6 and 7
// weights.
inline TileLayout product_layout(std::int64_t rows) {
    TileLayout layout;
    const std::int64_t upper = rows < kTileRows ? rows : kTileRows;
    for (const int tile : {0, 1, 4}) layout.shape(tile, upper, kTileRowBytes);
    for (const int tile : {2, 3, 5}) layout.shape(tile, rows - upper, kTileRowBytes);
    for (const int tile : {6, 7}) layout.shape(tile, kTileRows, kTileRowBytes);
    return layout;
}

template <class T, bool kLower>
DUALPACE_INLINE void begin_sums(T& tiles, const TileBlock& block) {
    constexpr std::int64_t kStride = kTileOutputs * std::int64_t{sizeof(float)};
    if (block.first_stretch) {
        tiles.template zero<0>();
        tiles.template zero<1>();
        if constexpr (kLower) tiles.template zero<2>();
        if constexpr (kLower) tiles.template zero<3>();
        return;
    }
    float* const lower = block.tile + kTileRows * kTileOutputs;
    tiles.template load<0>(block.tile, kStride);
    tiles.template load<1>(block.tile + kPanelOutputs, kStride);
    if constexpr (kLower) tiles.template load<2>(lower, kStride);
    if constexpr (kLower) tiles.template load<3>(lower + kPanelOutputs, kStride);
}

template <class T, bool kLower>
DUALPACE_INLINE void end_sums(T& tiles, const TileBlock& block) {
    constexpr std::int64_t kStride = kTileOutputs * std::int64_t{sizeof(float)};
    float* const lower = block.tile + kTileRows * kTileOutputs;
    tiles.template store<0>(block.tile, kStride);
    tiles.template store<1>(block.tile + kPanelOutputs, kStride);
    if constexpr (kLower) tiles.template store<2>(lower, kStride);
    if constexpr (kLower) tiles.template store<3>(lower + kPanelOutputs, kStride);
}

template <class T, bool kLower>
void multiply_tiles(T& tiles, TileBlock block, bool fetch) {
    const std::int64_t x_bytes = block.x_stride * std::int64_t{sizeof(BFloat16)};
    begin_sums<T, kLower>(tiles, block);
    for (std::int64_t input = 0; input < block.inputs; input += kTileInputs) {
        if (fetch) {
            prefetch_rows(block.pair.upcoming[0], kTileElements);
            prefetch_rows(block.pair.upcoming[1], kTileElements);
        }
        tiles.template load<4>(block.x + input, x_bytes);
        tiles.template load<6>(block.pair.weights[0], kTileRowBytes);
        tiles.template dot<0, 4, 6>();
        tiles.template load<7>(block.pair.weights[1], kTileRowBytes);
        tiles.template dot<1, 4, 7>();
        if constexpr (kLower) {
            tiles.template load<5>(block.x + kTileRows * block.x_stride + input, x_bytes);
            tiles.template dot<2, 5, 6>();
            tiles.template dot<3, 5, 7>();
        }
        block.pair.step();
    }
    end_sums<T, kLower>(tiles, block);
}

// All rows over one stretch. `shaped` is the number of rows that the tiles are shaped for.
template <class T>
void multiply_stretch(T& tiles, const ProductTask& task, TileBlock block, std::int64_t& shaped) {
    const BFloat16* const x = block.x;
    for (std::int64_t row = 0; row < task.rows; row += kPairRows) {
        block.rows = task.rows - row < kPairRows ? task.rows - row : kPairRows;
        if (block.rows != shaped) tiles.configure(product_layout(block.rows));
        shaped = block.rows;
        block.x = x + row * block.x_stride;
        block.tile = task.tile + row * kTileOutputs;
        if (block.rows > kTileRows) {
            multiply_tiles<T, true>(tiles, block, row == 0);
        } else {
            multiply_tiles<T, false>(tiles, block, row == 0);
        }
    }
}

template <class T>
void tile_product(const ProductTask& task) {
    const MatrixView& matrix = *task.matrix;
    const std::int64_t inputs = whole_tiles(matrix.inputs);
    const std::int64_t panels[2] = {task.panels.first, task.panels.second};
    const std::int64_t then[2] = {task.upcoming.first, task.upcoming.second};
    T tiles;
    std::int64_t shaped = 0;
    for (std::int64_t input = 0; input < inputs; input += kTileStretch) {
        const bool more = inputs - input > kTileStretch;
        TileBlock block{};
        block.x = task.rounded + input;
        block.x_stride = task.rounded_stride;
        for (int p = 0; p < 2; ++p) {
            block.pair.weights[p] = bfloat_panel(matrix, panels[p], input);
            block.pair.upcoming[p] = more ? bfloat_panel(matrix, panels[p], input + kTileStretch)
                                          : bfloat_panel(matrix, then[p], 0);
        }
        block.inputs = more ? kTileStretch : inputs - input;
        block.first_stretch = input == 0;
        multiply_stretch(tiles, task, block, shaped);
    }
}

template <class V, class T>
void rounded_tile_product(const ProductTask& task) {
    if (task.rows < kLeastTileRows) {
        few_rows_product<V>(task);
    } else {
        tile_product<T>(task);
    }
}

// Four independent sums: enough to hide the latency of a product of tiles.
template <class T>
std::int64_t tile_peak(std::int64_t steps, float* kept) {
    T tiles;
    tiles.configure(product_layout(kPairRows));
    for (std::int64_t step = 0; step < steps; ++step) {
        tiles.template dot<0, 4, 6>();
        tiles.template dot<1, 4, 7>();
        tiles.template dot<2, 5, 6>();
        tiles.template dot<3, 5, 7>();
    }
    alignas(64) float sums[kTileRows][kTileFloats];
    tiles.template store<0>(sums, kTileRowBytes);
    *kept = sums[0][0];
    return steps * 4 * 2 * kTileRows * kTileFloats * kTileBFloats;
}

}  // namespace
}  // namespace dualpace
