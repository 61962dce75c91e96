// The gates of feed-forward stages. Private to dense_template.h.
#pragma once

#include "dualpace/dense/parts.h"
#include "dualpace/dense_kernels.h"
#include "dualpace/vec/exp2.h"

extern "C" float erff(float);

namespace dualpace {
namespace {

// x / (1 + e^-t).
template <class V>
DUALPACE_INLINE typename V::F times_sigmoid(typename V::F x, typename V::F t) {
    constexpr float kLog2E = 1.44269504088896340736f;
    const typename V::F e = exp2_clamped<V>(V::mul(t, V::splat(-kLog2E)));
    return V::div(x, V::add(V::splat(1.0f), e));
}

// x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, by way of (1 + tanh t) / 2 = 1 / (1 + e^-2t).
template <class V>
DUALPACE_INLINE typename V::F gelu_tanh(typename V::F x) {
    constexpr float kTwiceSqrt2OverPi = 1.59576912160573071176f;
    const typename V::F square = V::mul(x, x);
    const typename V::F inner = V::fma(square, V::splat(0.044715f), V::splat(1.0f));
    return times_sigmoid<V>(x, V::mul(V::mul(x, V::splat(kTwiceSqrt2OverPi)), inner));
}

// x (1 + erf(x / sqrt 2)) / 2. Rare: no vector code.
template <class V>
DUALPACE_INLINE typename V::F gelu(typename V::F x) {
    constexpr float kSqrtHalf = 0.70710678118654752440f;
    alignas(64) float lanes[V::kLanes];
    V::store(lanes, x);
    for (float& lane : lanes) lane = 0.5f * lane * (1.0f + erff(lane * kSqrtHalf));
    return V::load(lanes);
}

template <class V>
DUALPACE_INLINE typename V::F activate(Activation activation, typename V::F x) {
    switch (activation) {
        case Activation::kSilu: return times_sigmoid<V>(x, x);
        case Activation::kGeluTanh: return gelu_tanh<V>(x);
        default: return gelu<V>(x);
    }
}

template <class V>
void gate(Activation activation, const float* gates, const float* up, std::int64_t n, float* out) {
    for (std::int64_t i = 0; i < n; i += V::kLanes) {
        const typename V::F g = activate<V>(activation, load_part<V>(gates + i, n - i));
        store_part<V>(out + i, V::mul(g, load_part<V>(up + i, n - i)), n - i);
    }
}

}  // namespace
}  // namespace dualpace
