// From softmax weights and values to sums on tiles, within one span. Private to tile_template.h.
//
// Weights in bfloat16 are the rows of the first factor, a head each. The second one wants two keys'
// values side by side, which is not how they lie in memory: they are interleaved on the way.
#pragma once

#include <cstdint>
#include <cstring>

#include "dualpace/span/segments.h"
#include "dualpace/tile/layout.h"

namespace dualpace {
namespace {

// Keys of one tile.
constexpr std::int64_t kTileKeys = kTileBFloats;
static_assert(kMostSpanKeys % kTileKeys == 0);
constexpr std::int64_t kMostDimensions = 256;

alignas(64) constexpr BFloat16 kNoValues[kMostDimensions] = {};

// Where the rows of a span's keys, or of their values, lie.
struct Rows {
    const BFloat16* at[kMostSpanKeys];
    std::int64_t count;
};

inline Rows rows_of(const SegmentList<BFloat16>& segments, std::int64_t offset,
                    std::int64_t head_dim) {
    Rows rows;
    rows.count = 0;
    for (int s = 0; s < segments.size; ++s) {
        const Segment<BFloat16>& segment = segments.items[s];
        for (std::int64_t j = 0; j < segment.count; ++j)
            rows.at[rows.count++] = segment.keys + offset + j * head_dim;
    }
    return rows;
}

// A span's values, with zeros up to a whole tile of keys, and the keys to fetch meanwhile.
struct ValueTask {
    Rows values;
    Rows upcoming;
    std::int64_t heads;
    std::int64_t head_dim;
    const BFloat16* weights;  // [heads][kMostSpanKeys]
    float* acc;               // [heads][head_dim]
};

inline void fill_last_tile(Rows& values) {
    while (values.count % kTileKeys != 0) values.at[values.count++] = kNoValues;
}

inline void fetch_upcoming(const ValueTask& task, std::int64_t first) {
    for (std::int64_t key = first; key < first + kTileKeys && key < task.upcoming.count; ++key)
        prefetch_rows(task.upcoming.at[key], task.head_dim);
}

// Tiles 0 to 3 are sums, 4 weights, 5 values.
inline TileLayout value_layout(std::int64_t heads) {
    TileLayout layout;
    for (const int tile : {0, 1, 2, 3, 4}) layout.shape(tile, heads, kTileRowBytes);
    layout.shape(5, kTileRows, kTileRowBytes);
    return layout;
}

// [16 dimensions][2 keys] from two keys' rows; `kHalf`: only eight dimensions are left, the others
// are zeros.
template <class V, bool kHalf>
DUALPACE_INLINE void interleave(const BFloat16* even, const BFloat16* odd, BFloat16* to) {
    typedef std::uint32_t Words __attribute__((vector_size(64)));
    static_assert(sizeof(Words) == sizeof(typename V::F));
    const Words first = (Words)load<V, kHalf>(even);
    const Words second = (Words)load<V, kHalf>(odd);
    const Words pairs = (first >> 16) | second;
    std::memcpy(to, &pairs, sizeof pairs);
}

template <class T, int kTile>
DUALPACE_INLINE void store_sum(T& tiles, const ValueTask& task, std::int64_t column) {
    if (column + kTileFloats <= task.head_dim) {
        tiles.template store<kTile>(task.acc + column, task.head_dim * 4);
        return;
    }
    alignas(64) float sums[kTileRows][kTileFloats];
    tiles.template store<kTile>(sums, kTileRowBytes);
    for (std::int64_t h = 0; h < task.heads; ++h) {
        for (std::int64_t d = column; d < task.head_dim; ++d)
            task.acc[h * task.head_dim + d] = sums[h][d - column];
    }
}

// One tile of keys, one tile of columns.
template <class V, class T, int kTile>
DUALPACE_INLINE void weigh_tile(T& tiles, const BFloat16* const* rows, std::int64_t head_dim,
                                std::int64_t column) {
    alignas(64) BFloat16 pairs[kTileRows][kTileBFloats];
    if (column + kTileFloats <= head_dim) {
        for (int j = 0; j < kTileRows; ++j)
            interleave<V, false>(rows[2 * j] + column, rows[2 * j + 1] + column, pairs[j]);
    } else {
        for (int j = 0; j < kTileRows; ++j)
            interleave<V, true>(rows[2 * j] + column, rows[2 * j + 1] + column, pairs[j]);
    }
    tiles.template load<5>(pairs, kTileRowBytes);
    tiles.template dot<kTile, 4, 5>();
}

// acc[h][column ..] = sum over keys of weight * value, for kCount tiles of columns.
template <class V, class T, int kCount>
void weigh_columns_on_tiles(T& tiles, const ValueTask& task, std::int64_t column) {
    tiles.template zero<0>();
    if constexpr (kCount > 1) tiles.template zero<1>();
    if constexpr (kCount > 2) tiles.template zero<2>();
    if constexpr (kCount > 3) tiles.template zero<3>();
    for (std::int64_t key = 0; key < task.values.count; key += kTileKeys) {
        const BFloat16* const* const rows = task.values.at + key;
        const std::int64_t d = task.head_dim;
        if (column == 0) fetch_upcoming(task, key);
        tiles.template load<4>(task.weights + key, kMostSpanKeys * 2);
        weigh_tile<V, T, 0>(tiles, rows, d, column);
        if constexpr (kCount > 1) weigh_tile<V, T, 1>(tiles, rows, d, column + kTileFloats);
        if constexpr (kCount > 2) weigh_tile<V, T, 2>(tiles, rows, d, column + 2 * kTileFloats);
        if constexpr (kCount > 3) weigh_tile<V, T, 3>(tiles, rows, d, column + 3 * kTileFloats);
    }
    store_sum<T, 0>(tiles, task, column);
    if constexpr (kCount > 1) store_sum<T, 1>(tiles, task, column + kTileFloats);
    if constexpr (kCount > 2) store_sum<T, 2>(tiles, task, column + 2 * kTileFloats);
    if constexpr (kCount > 3) store_sum<T, 3>(tiles, task, column + 3 * kTileFloats);
}

// All columns, up to four tiles at a time.
template <class V, class T>
void weigh_values_on_tiles(T& tiles, const ValueTask& task) {
    for (std::int64_t column = 0; column < task.head_dim; column += 4 * kTileFloats) {
        switch ((task.head_dim - column + kTileFloats - 1) / kTileFloats) {
            case 1: weigh_columns_on_tiles<V, T, 1>(tiles, task, column); break;
            case 2: weigh_columns_on_tiles<V, T, 2>(tiles, task, column); break;
            case 3: weigh_columns_on_tiles<V, T, 3>(tiles, task, column); break;
            default: weigh_columns_on_tiles<V, T, 4>(tiles, task, column); break;
        }
    }
}

}  // namespace
}  // namespace dualpace
