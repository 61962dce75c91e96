// The arithmetic limit that products are held against. Private to dense_template.h.
#pragma once

#include <cstdint>

#include "dualpace/vec/peak_sums.h"

namespace dualpace {
namespace {

template <class V>
std::int64_t peak(std::int64_t steps, float* kept) {
    typename V::F sums[kPeakSums];
    for (int i = 0; i < kPeakSums; ++i) sums[i] = V::splat(static_cast<float>(i));
    const typename V::F factor = V::splat(0.5f);
    for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
        for (int i = 0; i < kPeakSums; ++i) sums[i] = V::fma(sums[i], factor, factor);
    }
    *kept = keep_sums<V>(sums);
    return steps * kPeakSums * V::kLanes * 2;
}

template <class V>
std::int64_t rounded_peak(std::int64_t steps, float* kept) {
    typename V::F sums[kPeakSums];
    for (int i = 0; i < kPeakSums; ++i) sums[i] = V::splat(static_cast<float>(i));
    const BFloat16 ones[2 * V::kLanes] = {};
    const typename V::Pairs factor = V::load_pairs(ones);
    for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
        for (int i = 0; i < kPeakSums; ++i) sums[i] = V::dot_pairs(factor, factor, sums[i]);
    }
    *kept = keep_sums<V>(sums);
    return steps * kPeakSums * V::kLanes * 4;
}

template <class V>
std::int64_t quantised_peak(std::int64_t steps, float* kept) {
    typename V::Q sums[kPeakSums];
    const std::int16_t pair[2] = {};
    typename V::Q factor = V::splat_quanta(pair);
    for (int i = 0; i < kPeakSums; ++i) sums[i] = V::zero_quanta();
    for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
        for (int i = 0; i < kPeakSums; ++i) {
            typename V::Q sum = V::dot_quanta(factor, factor, sums[i]);
            V::finish_here(sum);
            sums[i] = sum;
            // The products are not those of before, as far as the compiler knows.
            V::finish_here(factor);
        }
    }
    typename V::F floats[kPeakSums];
    for (int i = 0; i < kPeakSums; ++i) floats[i] = V::widen_quanta(sums[i]);
    *kept = keep_sums<V>(floats);
    return steps * kPeakSums * V::kLanes * 4;
}

}  // namespace
}  // namespace dualpace
