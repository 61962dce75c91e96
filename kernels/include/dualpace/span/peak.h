// The arithmetic limit that decode attention is held against. Private to span_template.h.
//
// Attention multiplies each element of a key or a value with one number for each query head that
// shares it, after widening it once. This does that and nothing else, on a few lines of the first
// cache: no scores, no softmax, no order of blocks.
#pragma once

#include <cstdint>

#include "dualpace/vec/peak_sums.h"

namespace dualpace {
namespace {

// In the cheapest way there is: bfloat16 in pairs of vectors, of which one has the elements with an
// even place and one those with an odd one. (Attention would have to put its sums in order after
// that, and loads one vector after the other.)
template <class V, class T>
DUALPACE_INLINE typename V::F load_cheaply(const T* elements, int i) {
    return V::load(elements + i * V::kLanes);
}
template <class V>
DUALPACE_INLINE typename V::F load_cheaply(const BFloat16* elements, int i) {
    const BFloat16* pairs = elements + i / 2 * 2 * V::kLanes;
    return i % 2 == 0 ? V::load_even(pairs) : V::load_odd(pairs);
}

template <class V, int kHeads, class T>
std::int64_t multiply_cached(std::int64_t steps, float* kept) {
    alignas(64) const T elements[kPeakSums * V::kLanes] = {};
    typename V::F sums[kPeakSums];
#pragma GCC unroll 12
    for (int i = 0; i < kPeakSums; ++i) sums[i] = V::splat(static_cast<float>(i));
    const typename V::F factor = V::splat(0.5f);
    for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
        for (int i = 0; i < kPeakSums; ++i) {
            // As if the elements had changed: they are loaded and widened in every step, and one
            // after the other, so that registers suffice.
            asm volatile("" : : "r"(elements) : "memory");
            const typename V::F v = load_cheaply<V>(elements, i);
#pragma GCC unroll 8
            for (int h = 0; h < kHeads; ++h) {
                typename V::F& sum = sums[(i * kHeads + h) % kPeakSums];
                sum = V::fma(v, factor, sum);
            }
        }
    }
    *kept = keep_sums<V>(sums);
    return steps * kPeakSums * V::kLanes;
}

template <class V, class T, int kHeads = 8>
std::int64_t multiply_cached_for(std::int64_t group, std::int64_t steps, float* kept) {
    if constexpr (kHeads > 1) {
        if (group < kHeads) return multiply_cached_for<V, T, kHeads - 1>(group, steps, kept);
    }
    return multiply_cached<V, kHeads, T>(steps, kept);
}

template <class V>
std::int64_t span_peak(ElementType type, std::int64_t group, std::int64_t steps, float* kept) {
    switch (type) {
        case ElementType::kFloat32: return multiply_cached_for<V, float>(group, steps, kept);
        case ElementType::kFloat16: return multiply_cached_for<V, Half>(group, steps, kept);
        default: return multiply_cached_for<V, BFloat16>(group, steps, kept);
    }
}

}  // namespace
}  // namespace dualpace
