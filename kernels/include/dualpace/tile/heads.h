// Query heads as tiles take them: up to sixteen that share a kv head, rounded to bfloat16. Private
// to tile_template.h.
#pragma once

#include <cstdint>

#include "dualpace/span_kernels.h"
#include "dualpace/tile/layout.h"
#include "dualpace/vec/scalar.h"

namespace dualpace {
namespace {

// Dimensions of a head in tiles: some of kTileBFloats, and what is left.
struct Dimensions {
    std::int64_t whole;  // tiles
    std::int64_t rest;   // dimensions

    std::int64_t tiles() const { return whole + (rest > 0 ? 1 : 0); }
};

inline Dimensions dimensions_of(std::int64_t head_dim) {
    return {head_dim / kTileBFloats, head_dim % kTileBFloats};
}

// How many of the heads from `head` on are taken at once: equal shares of the group.
inline std::int64_t heads_at(std::int64_t head, std::int64_t group) {
    const std::int64_t left = group - head;
    const std::int64_t parts = (left + kTileRows - 1) / kTileRows;
    return (left + parts - 1) / parts;
}

// Where the packed queries of the heads from `head` on begin: [tile of dimensions][pair of
// dimensions][head][2]. They take no more room than pack_query's.
inline BFloat16* packed_heads(float* packed, std::int64_t head, std::int64_t head_dim) {
    return reinterpret_cast<BFloat16*>(packed) +
           head * dimensions_of(head_dim).tiles() * kTileBFloats;
}
inline const BFloat16* packed_heads(const float* packed, std::int64_t head, std::int64_t head_dim) {
    return reinterpret_cast<const BFloat16*>(packed) +
           head * dimensions_of(head_dim).tiles() * kTileBFloats;
}

// Copies [group, head_dim], times `factor`, into the packed layout.
void pack_rounded_query(const float* query, std::int64_t group, std::int64_t head_dim, float factor,
                        float* packed) {
    for (std::int64_t head = 0; head < group;) {
        const std::int64_t heads = heads_at(head, group);
        BFloat16* const to = packed_heads(packed, head, head_dim);
        for (std::int64_t h = 0; h < heads; ++h) {
            const float* const from = query + (head + h) * head_dim;
            for (std::int64_t d = 0; d < head_dim; ++d)
                to[(d / 2 * heads + h) * 2 + d % 2] = to_bfloat16(from[d] * factor);
        }
        head += heads;
    }
}

}  // namespace
}  // namespace dualpace
