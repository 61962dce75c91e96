// Products and attention on tiles, written once over any vector type of sixteen floats and any
// implementation of the tile layer. Include after one of each.
#pragma once

#include <cstdint>

#include "dualpace/span/scores.h"
#include "dualpace/tile/heads.h"
#include "dualpace/tile/product.h"
#include "dualpace/tile/scores.h"
#include "dualpace/tile/values.h"
#include "dualpace/tile_kernels.h"

namespace dualpace {
namespace {

// weights[head][key] = scores[key][padded head] in bfloat16; zeros up to a whole tile of keys.
template <class V, int kPadded>
void round_weights(float* scores, std::int64_t keys, std::int64_t heads,
                   BFloat16 (&weights)[kTileRows][kMostSpanKeys]) {
    constexpr std::int64_t kKeys = V::kLanes / kPadded;
    const std::int64_t end = (keys + kTileKeys - 1) / kTileKeys * kTileKeys;
    for (std::int64_t i = keys * kPadded; i < end * kPadded; ++i) scores[i] = 0.0f;
    for (std::int64_t key = 0; key < end; key += kKeys) {
        BFloat16 rounded[V::kLanes];
        V::store(rounded, V::load(scores + key * kPadded));
        for (std::int64_t j = 0; j < kKeys; ++j) {
            for (std::int64_t h = 0; h < heads; ++h) weights[h][key + j] = rounded[j * kPadded + h];
        }
    }
}

// Weights of up to kPadded query heads over the whole span; the softmax's max and sum go to
// `result`.
template <class V, class T, int kPadded>
void weights_on_tiles(T& tiles, const Span<BFloat16>& span, const SpanTask& task, std::int64_t head,
                      std::int64_t heads, const Partial& result,
                      BFloat16 (&weights)[kTileRows][kMostSpanKeys]) {
    // A tile of rows behind the last key may hold garbage.
    alignas(64) float scores[(kMostSpanKeys + kTileRows) * kPadded] = {};
    const BFloat16* const query = packed_heads(task.query, head, task.head_dim);
    tiles.configure(score_layout(heads, task.head_dim));
    float* to = scores;
    for (int s = 0; s < span.segments.size; ++s) {
        const Segment<BFloat16>& segment = span.segments.items[s];
        score_segment_on_tiles(tiles, segment, task, query, heads, kPadded, head == 0, to);
        to += segment.count * kPadded;
    }
    const std::int64_t keys = task.keys.last - task.keys.first;
    float max[kPadded];
    float sum[kPadded];
    softmax_span<V, kPadded>(scores, keys, max, sum);
    for (std::int64_t h = 0; h < heads; ++h) {
        result.max[head + h] = max[h];
        result.sum[head + h] = sum[h];
    }
    round_weights<V, kPadded>(scores, keys, heads, weights);
}

template <class V, class T>
void attend_rounded(const SpanTask& task, const Partial& result) {
    static_assert(V::kLanes == kTileFloats);
    const Span<BFloat16> span{segments_of<BFloat16>(task, task.keys),
                              segments_of<BFloat16>(task, task.upcoming)};
    ValueTask values{};
    values.values = rows_of(span.segments, task.value_offset, task.head_dim);
    fill_last_tile(values.values);
    values.head_dim = task.head_dim;
    alignas(64) BFloat16 weights[kTileRows][kMostSpanKeys];
    values.weights = weights[0];
    T tiles;
    for (std::int64_t head = 0; head < task.group; head += values.heads) {
        values.heads = heads_at(head, task.group);
        if (values.heads <= 4) {
            weights_on_tiles<V, T, 4>(tiles, span, task, head, values.heads, result, weights);
        } else if (values.heads <= 8) {
            weights_on_tiles<V, T, 8>(tiles, span, task, head, values.heads, result, weights);
        } else {
            weights_on_tiles<V, T, 16>(tiles, span, task, head, values.heads, result, weights);
        }
        if (head + values.heads == task.group)
            values.upcoming = rows_of(span.upcoming, 0, task.head_dim);
        values.acc = result.acc + head * task.head_dim;
        tiles.configure(value_layout(values.heads));
        weigh_values_on_tiles<V>(tiles, values);
    }
}

template <class V, class T>
constexpr TileKernels tile_table() {
    return {rounded_tile_product<V, T>, tile_peak<T>, pack_rounded_query, attend_rounded<V, T>};
}

}  // namespace
}  // namespace dualpace
