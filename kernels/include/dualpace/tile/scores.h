// From keys to scores on tiles, within one span. Private to tile_template.h.
//
// Keys are the rows of the first factor, as they lie in memory; the packed queries are the second.
// Scores come out head-minor, [key][padded head], as span/scores.h has them.
#pragma once

#include <cstdint>

#include "dualpace/span/segments.h"
#include "dualpace/tile/heads.h"
#include "dualpace/tile/layout.h"

namespace dualpace {
namespace {

// Tiles 0 and 1 are scores, 2 and 3 keys, 4 queries; 5 and 6 are keys and queries of a rest of
// dimensions.
inline TileLayout score_layout(std::int64_t heads, std::int64_t head_dim) {
    const std::int64_t rest = dimensions_of(head_dim).rest;
    TileLayout layout;
    for (const int tile : {0, 1}) layout.shape(tile, kTileRows, heads * 4);
    for (const int tile : {2, 3}) layout.shape(tile, kTileRows, kTileRowBytes);
    layout.shape(4, kTileRows, heads * 4);
    layout.shape(5, rest > 0 ? kTileRows : 0, rest * 2);
    layout.shape(6, rest / 2, heads * 4);
    return layout;
}

// Scores of 32 keys (kTwo) or 16. Rows behind a segment's last key are read: they are in memory,
// since a block's values follow its keys, and their scores are overwritten.
template <class T, bool kTwo>
DUALPACE_INLINE void score_rows(T& tiles, const BFloat16* keys, std::int64_t head_dim,
                                const BFloat16* query, std::int64_t heads, float* scores,
                                std::int64_t score_bytes) {
    const Dimensions dimensions = dimensions_of(head_dim);
    const std::int64_t key_bytes = head_dim * std::int64_t{sizeof(BFloat16)};
    const BFloat16* const others = keys + kTileRows * head_dim;
    tiles.template zero<0>();
    if constexpr (kTwo) tiles.template zero<1>();
    for (std::int64_t i = 0; i < dimensions.whole; ++i) {
        const std::int64_t d = i * kTileBFloats;
        tiles.template load<4>(query + d * heads, heads * 4);
        tiles.template load<2>(keys + d, key_bytes);
        tiles.template dot<0, 2, 4>();
        if constexpr (kTwo) tiles.template load<3>(others + d, key_bytes);
        if constexpr (kTwo) tiles.template dot<1, 3, 4>();
    }
    if (dimensions.rest > 0) {
        const std::int64_t d = dimensions.whole * kTileBFloats;
        tiles.template load<6>(query + d * heads, heads * 4);
        tiles.template load<5>(keys + d, key_bytes);
        tiles.template dot<0, 5, 6>();
        if constexpr (kTwo) tiles.template load<5>(others + d, key_bytes);
        if constexpr (kTwo) tiles.template dot<1, 5, 6>();
    }
    tiles.template store<0>(scores, score_bytes);
    if constexpr (kTwo) tiles.template store<1>(scores + kTileRows * score_bytes / 4, score_bytes);
}

// Writes a segment's scores, and up to 15 rows of garbage behind them.
template <class T>
void score_segment_on_tiles(T& tiles, const Segment<BFloat16>& segment, const SpanTask& task,
                            const BFloat16* query, std::int64_t heads, std::int64_t padded,
                            bool prefetch_values, float* scores) {
    std::int64_t j = 0;
    while (j < segment.count) {
        const bool two = segment.count - j > kTileRows;
        const std::int64_t rows = two ? 2 * kTileRows : kTileRows;
        const BFloat16* const keys = segment.keys + j * task.head_dim;
        if (prefetch_values) prefetch_rows(keys + task.value_offset, rows * task.head_dim);
        if (two) {
            score_rows<T, true>(tiles, keys, task.head_dim, query, heads, scores + j * padded,
                                padded * 4);
        } else {
            score_rows<T, false>(tiles, keys, task.head_dim, query, heads, scores + j * padded,
                                 padded * 4);
        }
        j += rows;
    }
}

}  // namespace
}  // namespace dualpace
