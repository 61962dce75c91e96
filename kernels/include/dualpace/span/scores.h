// From keys to softmax weights, within one span. Private to span_template.h.
//
// Scores are kept head-minor, [key][head], which makes both the softmax over keys and the broadcast
// of a weight plain vector loads.
#pragma once

#include <cstdint>

#include "dualpace/span/segments.h"
#include "dualpace/vec/exp2.h"

namespace dualpace {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

// Accumulates products over one vector of dimensions. `kHalf`: only eight of them are left.
template <class V, int kHeads, bool kHalf, int kKeys, class T>
DUALPACE_INLINE void multiply_dimensions(const T* const (&keys)[kKeys], const float* query,
                                         std::int64_t query_stride, std::int64_t d,
                                         typename V::F (&products)[V::kLanes]) {
    typename V::F q[kHeads];
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) q[h] = V::load(query + h * query_stride + d);
#pragma GCC unroll 16
    for (int j = 0; j < kKeys; ++j) {
        const typename V::F k = load<V, kHalf>(keys[j] + d);
#pragma GCC unroll 4
        for (int h = 0; h < kHeads; ++h) {
            typename V::F& product = products[j * padded_heads(kHeads) + h];
            product = V::fma(k, q[h], product);
        }
    }
}

// The same over two vectors of dimensions whose elements are loaded in pairs: those with an even
// place, then those with an odd one. So are the query's.
template <class V, int kHeads, int kKeys>
DUALPACE_INLINE void multiply_pairs(const BFloat16* const (&keys)[kKeys], const float* query,
                                    std::int64_t query_stride, std::int64_t d,
                                    typename V::F (&products)[V::kLanes]) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
        typename V::F q[kHeads];
#pragma GCC unroll 4
        for (int h = 0; h < kHeads; ++h)
            q[h] = V::load(query + h * query_stride + d + half * V::kLanes);
#pragma GCC unroll 16
        for (int j = 0; j < kKeys; ++j) {
            const typename V::F k =
                half == 0 ? V::load_even(keys[j] + d) : V::load_odd(keys[j] + d);
#pragma GCC unroll 4
            for (int h = 0; h < kHeads; ++h) {
                typename V::F& product = products[j * padded_heads(kHeads) + h];
                product = V::fma(k, q[h], product);
            }
        }
    }
}

// Scores of as many keys as fill one vector.
template <class V, int kHeads, class T, int kKeys>
DUALPACE_INLINE typename V::F score_keys(const T* const (&keys)[kKeys], const float* query,
                                         std::int64_t head_dim, std::int64_t query_stride) {
    static_assert(kKeys * padded_heads(kHeads) == V::kLanes);
    typename V::F products[V::kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < V::kLanes; ++i) products[i] = V::zero();
    std::int64_t d = 0;
    if constexpr (kPaired<T>) {
        for (; d + 2 * V::kLanes <= head_dim; d += 2 * V::kLanes)
            multiply_pairs<V, kHeads>(keys, query, query_stride, d, products);
    }
    for (; d + V::kLanes <= head_dim; d += V::kLanes) {
        multiply_dimensions<V, kHeads, false>(keys, query, query_stride, d, products);
    }
    if constexpr (V::kLanes > 8) {
        if (d < head_dim)
            multiply_dimensions<V, kHeads, true>(keys, query, query_stride, d, products);
    }
    return V::sum_each(products);
}

// Writes scores[key][padded head] for a segment, and up to a vector of garbage behind it: the last
// step may read rows behind the last key. They are in memory, since a block's values follow its
// keys, and their scores are overwritten. Meanwhile the part's share of `next` is fetched.
template <class V, int kHeads, class T>
DUALPACE_INLINE void score_segment(const Segment<T>& segment, const SpanTask& task,
                                   const float* queries, const HeadPart& heads,
                                   const RowRange<T>& next, float* scores) {
    constexpr int kKeys = V::kLanes / padded_heads(kHeads);
    const std::int64_t d = task.head_dim;
    const std::int64_t query_stride = packed_head_dim(d);
    const float* query = queries + heads.first * query_stride;
    Fetch fetch = fetch_share(next.first, next.count * d, heads.part, heads.parts,
                              (segment.count + kKeys - 1) / kKeys);
    for (std::int64_t j = 0; j < segment.count; j += kKeys) {
        const T* first = segment.keys + j * d;
        const T* keys[kKeys];
#pragma GCC unroll 16
        for (int i = 0; i < kKeys; ++i) keys[i] = first + i * d;
        fetch.advance();
        V::store(scores + j * padded_heads(kHeads),
                 score_keys<V, kHeads>(keys, query, d, query_stride));
    }
}

// Combines the lanes whose index agrees modulo kPeriod and leaves the result in each of them.
template <class V, int kPeriod, class Combine>
DUALPACE_INLINE typename V::F fold_lanes(typename V::F v, Combine combine) {
    if constexpr (V::kLanes > 8 && kPeriod <= 8) v = combine(v, V::template swap<8>(v));
    if constexpr (kPeriod <= 4) v = combine(v, V::template swap<4>(v));
    if constexpr (kPeriod <= 2) v = combine(v, V::template swap<2>(v));
    if constexpr (kPeriod <= 1) v = combine(v, V::template swap<1>(v));
    return v;
}

// Turns scores [keys][padded head] into weights in place; max and sum go to the first kHeads
// entries of each.
template <class V, int kHeads>
DUALPACE_INLINE void softmax_span(float* scores, std::int64_t keys, float* max, float* sum) {
    using F = typename V::F;
    constexpr int kPadded = padded_heads(kHeads);
    const std::int64_t used = keys * kPadded;
    const std::int64_t end = (used + V::kLanes - 1) / V::kLanes * V::kLanes;
    for (std::int64_t i = used; i < end; ++i) scores[i] = kMinusInfinity;

    F largest = V::load(scores);
    for (std::int64_t i = V::kLanes; i < end; i += V::kLanes)
        largest = V::max(largest, V::load(scores + i));
    largest = fold_lanes<V, kPadded>(largest, [](F a, F b) { return V::max(a, b); });

    F total = V::zero();
    for (std::int64_t i = 0; i < end; i += V::kLanes) {
        const F weight = exp2_nonpositive<V>(V::sub(V::load(scores + i), largest));
        V::store(scores + i, weight);
        total = V::add(total, weight);
    }
    total = fold_lanes<V, kPadded>(total, [](F a, F b) { return V::add(a, b); });

    alignas(64) float lanes[V::kLanes];
    V::store(lanes, largest);
    for (int h = 0; h < kHeads; ++h) max[h] = lanes[h];
    V::store(lanes, total);
    for (int h = 0; h < kHeads; ++h) sum[h] = lanes[h];
}

}  // namespace
}  // namespace dualpace
