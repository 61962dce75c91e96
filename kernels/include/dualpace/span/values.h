// From softmax weights and values to sums, within one span. Private to span_template.h.
#pragma once

#include <cstdint>

#include "dualpace/span/fetch.h"
#include "dualpace/span/segments.h"

namespace dualpace {
namespace {

// Adds weight * value of one key to the sums of each head, for kColumns vectors of columns.
template <class V, int kHeads, int kColumns, bool kHalf, class T>
DUALPACE_INLINE void weigh_key(const T* value, const float* weights,
                               typename V::F (&sums)[kHeads][kColumns]) {
    // The fewer of both stay in registers beside the sums.
    if constexpr (kColumns <= kHeads) {
        typename V::F v[kColumns];
#pragma GCC unroll 8
        for (int c = 0; c < kColumns; ++c) v[c] = load<V, kHalf>(value + c * V::kLanes);
#pragma GCC unroll 4
        for (int h = 0; h < kHeads; ++h) {
            const typename V::F weight = V::splat(weights[h * ScoreLayout<kHeads>::kHead]);
#pragma GCC unroll 8
            for (int c = 0; c < kColumns; ++c) sums[h][c] = V::fma(v[c], weight, sums[h][c]);
        }
    } else {
        typename V::F weight[kHeads];
#pragma GCC unroll 4
        for (int h = 0; h < kHeads; ++h)
            weight[h] = V::splat(weights[h * ScoreLayout<kHeads>::kHead]);
#pragma GCC unroll 8
        for (int c = 0; c < kColumns; ++c) {
            const typename V::F v = load<V, kHalf>(value + c * V::kLanes);
#pragma GCC unroll 4
            for (int h = 0; h < kHeads; ++h) sums[h][c] = V::fma(v, weight[h], sums[h][c]);
        }
    }
}

template <class V, bool kHalf>
DUALPACE_INLINE void store_sum(float* to, typename V::F sum) {
    if constexpr (kHalf) {
        V::store_half(to, sum);
    } else {
        V::store(to, sum);
    }
}

// What the passes over a segment's values share.
template <class T>
struct ValuePass {
    const Segment<T>& segment;
    FetchAhead<T>& ahead;
    const SpanTask& task;
    const HeadPart& heads;
    const float* weights;  // of the segment's first key
    float* acc;            // of the part's first head
};

// acc[h][column ..] += sum over the segment's keys of weight * value, for kColumns vectors of
// columns (or half a vector). As many bytes are fetched as the pass's share of the work.
template <class V, int kHeads, int kColumns, bool kHalf, class T>
DUALPACE_INLINE void weigh_columns(const ValuePass<T>& pass, std::int64_t column) {
    const std::int64_t d = pass.task.head_dim;
    const std::int64_t columns = kHalf ? V::kLanes / 2 : std::int64_t{kColumns} * V::kLanes;
    float* const acc = pass.acc + column;
    typename V::F sums[kHeads][kColumns];
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 8
        for (int c = 0; c < kColumns; ++c) {
            const float* from = acc + h * d + c * V::kLanes;
            sums[h][c] = pass.segment.before == 0 ? V::zero() : load<V, kHalf>(from);
        }
    }
    const std::int64_t count = pass.segment.count;
    const T* value = pass.segment.keys + pass.task.value_offset + column;
    const float* weights = pass.weights;
    Fetch fetch =
        pass.ahead.take(pass.heads.share(2 * columns * std::int64_t{sizeof(T)}), (count + 1) / 2);
    const auto weigh_next = [&] {
        weigh_key<V, kHeads, kColumns, kHalf>(value, weights, sums);
        value += d;
        weights += ScoreLayout<kHeads>::kKey;
    };
    for (std::int64_t j = 0; j + 2 <= count; j += 2) {
        fetch.advance();
        weigh_next();
        weigh_next();
    }
    if (count % 2 != 0) weigh_next();
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 8
        for (int c = 0; c < kColumns; ++c)
            store_sum<V, kHalf>(acc + h * d + c * V::kLanes, sums[h][c]);
    }
}

// All columns from `column` on, kColumns vectors at a time, then fewer.
template <class V, int kHeads, int kColumns, class T>
DUALPACE_INLINE void weigh_values(const ValuePass<T>& pass, std::int64_t column) {
    constexpr std::int64_t kWidth = std::int64_t{kColumns} * V::kLanes;
    // Twice two rather than three and one, whose few sums would wait for each other.
    constexpr std::int64_t kLeft = kColumns == 3 ? 4 * V::kLanes : 0;
    const std::int64_t end = pass.task.head_dim;
    for (; column + kWidth <= end && column + kLeft != end; column += kWidth)
        weigh_columns<V, kHeads, kColumns, false>(pass, column);
    if constexpr (kColumns > 1) {
        weigh_values<V, kHeads, kColumns == 3 ? 2 : kColumns / 2>(pass, column);
    } else if constexpr (V::kLanes > 8) {
        if (column < pass.task.head_dim) weigh_columns<V, kHeads, 1, true>(pass, column);
    }
}

}  // namespace
}  // namespace dualpace
