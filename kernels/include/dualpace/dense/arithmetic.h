// How activations and weights of one format are multiplied. Private to dense/product.h.
//
// An arithmetic takes `kInputs` inputs at a time, in `kSteps` steps; the weights of as many inputs
// lie side by side in a panel. `kWhole`: in whole numbers, by quantised_block.h; `kWidens`: in
// fp32.
#pragma once

#include "dualpace/element.h"
#include "dualpace/span/segments.h"

namespace dualpace {
namespace {

// fp32 whatever the weights are: they are widened as they are loaded.
template <class V, class T>
struct Widening {
    using X = float;
    using Weight = T;
    using W = typename V::F;
    using A = typename V::F;
    static constexpr int kInputs = 1;
    static constexpr int kSteps = 1;
    static constexpr bool kWhole = false;
    static constexpr bool kWidens = true;

    template <int>
    static W load(const T* p) {
        return V::load(p);
    }
    template <int>
    static A splat(const float* x) {
        return V::splat(*x);
    }
    static typename V::F multiply_add(W w, A a, typename V::F sum) { return V::fma(w, a, sum); }
};

template <class V>
struct Widening<V, BFloat16> {
    using X = float;
    using Weight = BFloat16;
    using W = typename V::F;
    using A = typename V::F;
    static constexpr int kInputs = 2;
    static constexpr int kSteps = 2;
    static constexpr bool kWhole = false;
    static constexpr bool kWidens = true;

    template <int kStep>
    static W load(const BFloat16* p) {
        if constexpr (kStep == 0) {
            return V::load_even(p);
        } else {
            return V::load_odd(p);
        }
    }
    template <int kStep>
    static A splat(const float* x) {
        return V::splat(x[kStep]);
    }
    static typename V::F multiply_add(W w, A a, typename V::F sum) { return V::fma(w, a, sum); }
};

// bfloat16 activations times weights that are bfloat16 numbers, two products at a time, summed in
// fp32 by the processor. int8 weights are such numbers, too; their scales come in at the end.
template <class V, class T>
struct Pairing {
    using X = BFloat16;
    using Weight = T;
    using W = typename V::Pairs;
    using A = typename V::Pairs;
    static constexpr int kInputs = 2;
    static constexpr int kSteps = 1;
    static constexpr bool kWhole = false;
    static constexpr bool kWidens = false;

    template <int>
    static W load(const T* p) {
        return V::load_pairs(p);
    }
    template <int>
    static A splat(const BFloat16* x) {
        return V::splat_pair(x);
    }
    static typename V::F multiply_add(W w, A a, typename V::F sum) {
        return V::dot_pairs(w, a, sum);
    }
};

// Whole numbers times whole numbers, two products at a time, summed in 32 bits over kTileInputs
// inputs and from there on in fp32.
template <class V, class T>
struct Quantised {
    using X = std::int16_t;
    using Weight = T;
    static constexpr int kInputs = 2;
    static constexpr int kSteps = 1;
    static constexpr bool kWhole = true;
    static constexpr bool kWidens = false;
    // Whether there may be more than one scale for an output.
    static constexpr bool kGrouped = sizeof(T) == 1;
};

// Of int8 weights that were widened before.
template <class V>
struct QuantisedInGroups : Quantised<V, std::int16_t> {
    static constexpr bool kGrouped = true;
};

}  // namespace
}  // namespace dualpace
