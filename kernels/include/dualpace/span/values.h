// From softmax weights and values to sums, within one span. Private to span_template.h.
#pragma once

#include <cstdint>

#include "dualpace/span/segments.h"

namespace dualpace {
namespace {

// Adds weight * value of one key to the sums of each head, for kColumns vectors of columns.
template <class V, int kHeads, int kColumns, bool kHalf, class T>
DUALPACE_INLINE void weigh_key(const T* value, const float* weights,
                               typename V::F (&sums)[kHeads][kColumns]) {
    typename V::F weight[kHeads];
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) weight[h] = V::splat(weights[h]);
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
        const typename V::F v = load<V, kHalf>(value + c * V::kLanes);
#pragma GCC unroll 4
        for (int h = 0; h < kHeads; ++h) sums[h][c] = V::fma(v, weight[h], sums[h][c]);
    }
}

template <class V, int kHeads, int kColumns, bool kHalf>
DUALPACE_INLINE void store_sums(const typename V::F (&sums)[kHeads][kColumns],
                                std::int64_t head_dim, float* acc) {
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 8
        for (int c = 0; c < kColumns; ++c) {
            float* to = acc + h * head_dim + c * V::kLanes;
            if constexpr (kHalf) {
                V::store_half(to, sums[h][c]);
            } else {
                V::store(to, sums[h][c]);
            }
        }
    }
}

// acc[h][column ..] = sum over keys of weight * value, for kColumns vectors of columns (or half a
// vector).
template <class V, int kHeads, int kColumns, bool kHalf, class T>
DUALPACE_INLINE void weigh_columns(const Span<T>& span, const SpanTask& task, const float* weights,
                                   std::int64_t column, bool prefetch_keys, float* acc) {
    typename V::F sums[kHeads][kColumns];
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 8
        for (int c = 0; c < kColumns; ++c) sums[h][c] = V::zero();
    }
    for (int s = 0; s < span.segments.size; ++s) {
        const T* value = span.segments.items[s].keys + task.value_offset + column;
        const T* upcoming = s < span.upcoming.size ? span.upcoming.items[s].keys : nullptr;
        const std::int64_t prefetched = prefetch_keys && upcoming != nullptr ? task.head_dim : 0;
        for (std::int64_t j = 0; j < span.segments.items[s].count; ++j) {
            prefetch_rows(upcoming, prefetched);
            weigh_key<V, kHeads, kColumns, kHalf>(value, weights, sums);
            upcoming += prefetched;
            value += task.head_dim;
            weights += padded_heads(kHeads);
        }
    }
    store_sums<V, kHeads, kColumns, kHalf>(sums, task.head_dim, acc + column);
}

// All columns from `column` on, kColumns vectors at a time, then half as many, and so on.
template <class V, int kHeads, int kColumns, class T>
DUALPACE_INLINE void weigh_values(const Span<T>& span, const SpanTask& task, const float* weights,
                                  std::int64_t column, bool prefetch_keys, float* acc) {
    constexpr std::int64_t kWidth = std::int64_t{kColumns} * V::kLanes;
    for (; column + kWidth <= task.head_dim; column += kWidth) {
        weigh_columns<V, kHeads, kColumns, false>(span, task, weights, column,
                                                  prefetch_keys && column == 0, acc);
    }
    if constexpr (kColumns > 1) {
        weigh_values<V, kHeads, kColumns / 2>(span, task, weights, column, prefetch_keys, acc);
    } else if constexpr (V::kLanes > 8) {
        if (column < task.head_dim) {
            weigh_columns<V, kHeads, 1, true>(span, task, weights, column,
                                              prefetch_keys && column == 0, acc);
        }
    }
}

}  // namespace
}  // namespace dualpace
