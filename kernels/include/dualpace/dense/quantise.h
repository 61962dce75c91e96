// From activations to whole numbers. Private to dense_template.h.
#pragma once

#include <cstdint>

#include "dualpace/dense/parts.h"
#include "dualpace/matrix.h"
#include "dualpace/vec/fold.h"

namespace dualpace {
namespace {

// Up to kTileInputs numbers, and zeros behind them.
template <class V>
DUALPACE_INLINE float quantise_group(const float* x, std::int64_t count, std::int16_t* quanta) {
    using F = typename V::F;
    constexpr int kVectors = static_cast<int>(kTileInputs) / V::kLanes;
    F v[kVectors];
    F largest = V::zero();
    // Stays zero for numbers; an infinity or what is no number makes it no number.
    F zeros = V::zero();
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
        v[i] = load_part<V>(x + i * V::kLanes, count - i * V::kLanes);
        largest = V::max(largest, V::max(v[i], V::sub(V::zero(), v[i])));
        zeros = V::fma(v[i], V::zero(), zeros);
    }
    const float most =
        first_lane<V>(fold_lanes<V, 1>(largest, [](F a, F b) { return V::max(a, b); }));
    const float broken =
        first_lane<V>(fold_lanes<V, 1>(zeros, [](F a, F b) { return V::add(a, b); }));
    const bool scaled = broken == 0.0f && most >= kLeastScaled;
    const F inverse = V::splat(scaled ? static_cast<float>(kLargestQuantum) / most : 0.0f);
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
        const F whole = broken == 0.0f ? V::mul(v[i], inverse) : V::zero();
        V::store_quanta(quanta + i * V::kLanes, whole);
    }
    if (broken != 0.0f) return broken;
    return scaled ? most / static_cast<float>(kLargestQuantum) : 0.0f;
}

template <class V>
void quantise(const float* x, std::int64_t n, std::int16_t* quanta, float* scales) {
    for (std::int64_t i = 0; i < n; i += kTileInputs)
        *scales++ = quantise_group<V>(x + i, n - i, quanta + i);
}

}  // namespace
}  // namespace dualpace
