// From keys to softmax weights, within one span. Private to span_template.h.
//
// Scores of one, two or four heads are kept [key][head], which makes both the softmax over keys and
// the broadcast of a weight plain vector loads.
#pragma once

#include <cstdint>

#include "dualpace/span/fetch.h"
#include "dualpace/span/segments.h"
#include "dualpace/vec/exp2.h"
#include "dualpace/vec/fold.h"

namespace dualpace {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

// Products of some keys with each query head, [key][head] or, of three heads, [head][key].
template <class V, int kHeads, int kKeys>
struct Products {
    static constexpr int kKey = kHeads == 3 ? 1 : kHeads;
    static constexpr int kHead = kHeads == 3 ? kKeys : 1;
    typename V::F at[kKeys * kHeads];
};

// Adds the products over one vector of dimensions. `load_key(j)` is that of key j.
template <class V, int kHeads, int kKeys, class LoadKey>
DUALPACE_INLINE void multiply_dimensions(const LoadKey& load_key, const float* query,
                                         std::int64_t query_stride,
                                         Products<V, kHeads, kKeys>& products) {
    using P = Products<V, kHeads, kKeys>;
    // The fewer of both stay in registers beside the products.
    if constexpr (kHeads < kKeys && kHeads > 1) {
        typename V::F q[kHeads];
#pragma GCC unroll 4
        for (int h = 0; h < kHeads; ++h) q[h] = V::load(query + h * query_stride);
#pragma GCC unroll 16
        for (int j = 0; j < kKeys; ++j) {
            const typename V::F k = V::hold(load_key(j));
#pragma GCC unroll 4
            for (int h = 0; h < kHeads; ++h) {
                typename V::F& product = products.at[j * P::kKey + h * P::kHead];
                product = V::fma(k, q[h], product);
            }
        }
    } else {
        typename V::F k[kKeys];
#pragma GCC unroll 16
        for (int j = 0; j < kKeys; ++j) k[j] = load_key(j);
#pragma GCC unroll 4
        for (int h = 0; h < kHeads; ++h) {
            const typename V::F q = V::hold(V::load(query + h * query_stride));
#pragma GCC unroll 16
            for (int j = 0; j < kKeys; ++j) {
                typename V::F& product = products.at[j * P::kKey + h * P::kHead];
                product = V::fma(k[j], q, product);
            }
        }
    }
}

// One vector of dimensions after the other; at the end perhaps half a vector.
template <class V, int kHeads, int kKeys, class T>
DUALPACE_INLINE Products<V, kHeads, kKeys> multiply_keys(const T* first, const float* query,
                                                         std::int64_t head_dim,
                                                         std::int64_t query_stride) {
    Products<V, kHeads, kKeys> products;
#pragma GCC unroll 16
    for (typename V::F& product : products.at) product = V::zero();
    const auto multiply = [&](std::int64_t d, const auto& load_key) {
        multiply_dimensions<V, kHeads, kKeys>(load_key, query + d, query_stride, products);
    };
    std::int64_t d = 0;
    for (; d + V::kLanes <= head_dim; d += V::kLanes)
        multiply(d, [&](int j) { return V::load(first + j * head_dim + d); });
    if constexpr (V::kLanes > 8) {
        if (d < head_dim)
            multiply(d, [&](int j) { return V::load_half(first + j * head_dim + d); });
    }
    return products;
}

template <class V, int kHeads, int kKeys>
DUALPACE_INLINE void store_scores(float* scores, const Products<V, kHeads, kKeys>& products) {
    if constexpr (kHeads == 3) {
        static_assert(kKeys == 4);
#pragma GCC unroll 3
        for (int h = 0; h < 3; ++h)
            V::store_sums(scores + h * ScoreLayout<3>::kHead, products.at + 4 * h);
    } else if constexpr (kKeys * kHeads == V::kLanes) {
        V::store(scores, V::sum_each(products.at));
    } else {
        static_assert(kHeads == 4);
#pragma GCC unroll 4
        for (int j = 0; j < kKeys; ++j) V::store_sums(scores + 4 * j, products.at + 4 * j);
    }
}

// How many keys are scored at once for four query heads.
template <class V, class T>
constexpr int kKeysOfFour = V::kKeysOfFour;
template <class V>
constexpr int kKeysOfFour<V, BFloat16> = V::kWideningKeysOfFour;

// Writes a segment's scores, and up to a vector of garbage behind each row of them: the last
// step may read rows behind the last key. They are in memory, since a block's values follow its
// keys, and their scores are overwritten.
template <class V, int kHeads, class T>
DUALPACE_INLINE void score_segment(const Segment<T>& segment, const SpanTask& task,
                                   const HeadPart& heads, FetchAhead<T>& ahead, float* scores) {
    constexpr int kKey = ScoreLayout<kHeads>::kKey;
    const std::int64_t d = task.head_dim;
    const std::int64_t query_stride = packed_head_dim(d);
    const float* query = task.query + heads.first * query_stride;
    // As many keys as fill one vector, unless more registers are free for sums.
    constexpr int kOneVector = kHeads == 3 ? 4 : V::kLanes / kHeads;
    constexpr int kMost = kHeads == 4 ? kKeysOfFour<V, T> : kOneVector;
    Fetch fetch = ahead.take(heads.share(kMost * d * std::int64_t{sizeof(T)}),
                             (segment.count + kMost - 1) / kMost);
    std::int64_t j = 0;
    const auto score_next = [&](auto keys) {
        constexpr int kKeys = decltype(keys)::value;
        fetch.advance();
        store_scores<V, kHeads, kKeys>(
            scores + j * kKey,
            multiply_keys<V, kHeads, kKeys>(segment.keys + j * d, query, d, query_stride));
        j += kKeys;
    };
    while (j + kMost <= segment.count) score_next(Count<kMost>{});
    while (j < segment.count) score_next(Count<kOneVector>{});
}

// Lane by lane, over `count` numbers in whole vectors; not one after the other, so that no maximum
// waits for the last.
template <class V>
DUALPACE_INLINE typename V::F largest_of(const float* numbers, std::int64_t count) {
    constexpr int kChains = 4;
    typename V::F largest[kChains];
#pragma GCC unroll 4
    for (typename V::F& chain : largest) chain = V::load(numbers);
    std::int64_t i = 0;
    for (; i + kChains * V::kLanes <= count; i += kChains * V::kLanes) {
#pragma GCC unroll 4
        for (int c = 0; c < kChains; ++c)
            largest[c] = V::max(largest[c], V::load(numbers + i + c * V::kLanes));
    }
    for (; i < count; i += V::kLanes) largest[0] = V::max(largest[0], V::load(numbers + i));
    return V::max(V::max(largest[0], largest[1]), V::max(largest[2], largest[3]));
}

// Turns scores [keys][kHeads], a power of two, into weights in place; max and sum go to the first
// kHeads entries of each.
template <class V, int kHeads>
DUALPACE_INLINE void softmax_span(float* scores, std::int64_t keys, float* max, float* sum) {
    using F = typename V::F;
    const std::int64_t used = keys * kHeads;
    const std::int64_t end = (used + V::kLanes - 1) / V::kLanes * V::kLanes;
    for (std::int64_t i = used; i < end; ++i) scores[i] = kMinusInfinity;

    F largest = largest_of<V>(scores, end);
    largest = fold_lanes<V, kHeads>(largest, [](F a, F b) { return V::max(a, b); });

    F total = V::zero();
    for (std::int64_t i = 0; i < end; i += V::kLanes) {
        const F weight = exp2_nonpositive<V>(V::sub(V::load(scores + i), largest));
        V::store(scores + i, weight);
        total = V::add(total, weight);
    }
    total = fold_lanes<V, kHeads>(total, [](F a, F b) { return V::add(a, b); });

    alignas(64) float lanes[V::kLanes];
    V::store(lanes, largest);
    for (int h = 0; h < kHeads; ++h) max[h] = lanes[h];
    V::store(lanes, total);
    for (int h = 0; h < kHeads; ++h) sum[h] = lanes[h];
}

}  // namespace
}  // namespace dualpace
