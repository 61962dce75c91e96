// From softmax weights and values to sums, within one span. Private to span_template.h.
#pragma once

#include <cstdint>

#include "dualpace/span/segments.h"

namespace dualpace {
namespace {

// Whether columns are loaded in pairs, and sums therefore are of those with an even place and of
// those with an odd one in turn, until the span's last segment.
template <int kColumns, bool kHalf, class T>
constexpr bool kPairedColumns = kPaired<T> && !kHalf && kColumns % 2 == 0;

template <class V, int kColumns, bool kHalf, class T>
DUALPACE_INLINE typename V::F load_column(const T* value, int c) {
    if constexpr (kPairedColumns<kColumns, kHalf, T>) {
        const T* pairs = value + c / 2 * 2 * V::kLanes;
        return c % 2 == 0 ? V::load_even(pairs) : V::load_odd(pairs);
    } else {
        return load<V, kHalf>(value + c * V::kLanes);
    }
}

// Adds weight * value of one key to the sums of each head, for kColumns vectors of columns.
template <class V, int kHeads, int kColumns, bool kHalf, class T>
DUALPACE_INLINE void weigh_key(const T* value, const float* weights,
                               typename V::F (&sums)[kHeads][kColumns]) {
    typename V::F weight[kHeads];
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) weight[h] = V::splat(weights[h]);
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
        const typename V::F v = load_column<V, kColumns, kHalf>(value, c);
#pragma GCC unroll 4
        for (int h = 0; h < kHeads; ++h) sums[h][c] = V::fma(v, weight[h], sums[h][c]);
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

// From sums of even and odd places to sums in order.
template <class V, int kHeads, int kColumns>
DUALPACE_INLINE void zip_columns(typename V::F (&sums)[kHeads][kColumns]) {
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
        for (int c = 0; c < kColumns; c += 2) {
            typename V::F neighbours[2];
            V::zip(sums[h][c], sums[h][c + 1], neighbours);
            sums[h][c] = neighbours[0];
            sums[h][c + 1] = neighbours[1];
        }
    }
}

// What the passes over a segment's values share.
template <class T>
struct ValuePass {
    const Segment<T>& segment;
    const RowRange<T>& next;
    const SpanTask& task;
    const HeadPart& heads;
    const float* weights;  // of the segment's first key
    bool first_segment;
    bool last_segment;
    float* acc;  // of the part's first head
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
            sums[h][c] = pass.first_segment ? V::zero() : load<V, kHalf>(from);
        }
    }
    const std::int64_t count = pass.segment.count;
    const T* value = pass.segment.keys + pass.task.value_offset + column;
    const float* weights = pass.weights;
    Fetch fetch = fetch_share(pass.next.first + pass.next.count * column, pass.next.count * columns,
                              pass.heads.part, pass.heads.parts, (count + 1) / 2);
    const auto weigh_next = [&] {
        weigh_key<V, kHeads, kColumns, kHalf>(value, weights, sums);
        value += d;
        weights += padded_heads(kHeads);
    };
    for (std::int64_t j = 0; j + 2 <= count; j += 2) {
        fetch.advance();
        weigh_next();
        weigh_next();
    }
    if (count % 2 != 0) weigh_next();
    if constexpr (kPairedColumns<kColumns, kHalf, T>) {
        if (pass.last_segment) zip_columns<V>(sums);
    }
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 8
        for (int c = 0; c < kColumns; ++c)
            store_sum<V, kHalf>(acc + h * d + c * V::kLanes, sums[h][c]);
    }
}

// All columns from `column` on, kColumns vectors at a time, then half as many, and so on.
template <class V, int kHeads, int kColumns, class T>
DUALPACE_INLINE void weigh_values(const ValuePass<T>& pass, std::int64_t column) {
    constexpr std::int64_t kWidth = std::int64_t{kColumns} * V::kLanes;
    for (; column + kWidth <= pass.task.head_dim; column += kWidth)
        weigh_columns<V, kHeads, kColumns, false>(pass, column);
    if constexpr (kColumns > 1) {
        weigh_values<V, kHeads, kColumns / 2>(pass, column);
    } else if constexpr (V::kLanes > 8) {
        if (column < pass.task.head_dim) weigh_columns<V, kHeads, 1, true>(pass, column);
    }
}

}  // namespace
}  // namespace dualpace
