// A block of rows by one or two panels, whose sums are kept in registers while the inputs of one
// stretch are walked. Private to dense/product.h.
#pragma once

#include <cstdint>

#include "dualpace/dense/arithmetic.h"
#include "dualpace/dense_kernels.h"

namespace dualpace {
namespace {

// One block of rows, one or two panels, one stretch of inputs.
template <class M>
struct Block {
    using X = typename M::X;
    using T = typename M::Weight;

    const X* x;
    std::int64_t x_stride;
    const T* weights;           // of the first panel
    std::int64_t panel_stride;  // from it to the second, in elements
    const T* upcoming;          // what this block is to fetch
    std::int64_t upcoming_stride;
    std::int64_t upcoming_step;  // elements of it for each step
    std::int64_t fetch_step;     // this block's share of those; 0: fetches nothing
    std::int64_t inputs;
    const float* scales;  // of the first panel; null: none
    std::int64_t scale_stride;
    bool first_stretch;
    float* tile;
    // Of quantised activations:
    const float* x_scales;
    std::int64_t x_scale_stride;
    bool stretch_scales;  // `scales` are of this stretch; otherwise of all inputs, at their end
};

template <class V, int kPanels>
constexpr int kBlockVectors = kPanels * static_cast<int>(kPanelOutputs) / V::kLanes;

template <class V, class M, int kRows, int kPanels, int kStep>
DUALPACE_INLINE void multiply_step(const typename M::Weight* weights, std::int64_t panel_stride,
                                   const char* x, std::int64_t row_bytes,
                                   typename V::F (&sums)[kRows][kBlockVectors<V, kPanels>]) {
    constexpr int kVectors = kBlockVectors<V, kPanels>;
    constexpr int kPanelVectors = kVectors / kPanels;
    typename M::W w[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
        w[v] = M::template load<kStep>(weights + (v / kPanelVectors) * panel_stride +
                                       (v % kPanelVectors) * V::kLanes * M::kInputs);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
        const auto* row = reinterpret_cast<const typename M::X*>(x + r * row_bytes);
        const typename M::A a = M::template splat<kStep>(row);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sums[r][v] = M::multiply_add(w[v], a, sums[r][v]);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) V::finish_here(sums[r][v]);
    }
}

template <class V, class M, int kRows, int kPanels>
DUALPACE_INLINE void finish_block(const Block<M>& block,
                                  const typename V::F (&sums)[kRows][kBlockVectors<V, kPanels>]) {
    constexpr int kVectors = kBlockVectors<V, kPanels>;
    constexpr int kPanelVectors = kVectors / kPanels;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
        typename V::F scale = V::zero();
        if (block.scales != nullptr) {
            scale = V::load(block.scales + (v / kPanelVectors) * block.scale_stride +
                            (v % kPanelVectors) * V::kLanes);
        }
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
            float* to = block.tile + r * kTileOutputs + v * V::kLanes;
            const typename V::F sum = sums[r][v];
            typename V::F total;
            if (block.scales != nullptr) {
                total = block.first_stretch ? V::mul(sum, scale) : V::fma(sum, scale, V::load(to));
            } else {
                total = block.first_stretch ? sum : V::add(V::load(to), sum);
            }
            V::store(to, total);
        }
    }
}

// Asks for what comes next, while one step is computed.
template <int kPanels, class M>
DUALPACE_INLINE void fetch_step(const Block<M>& block, const typename M::Weight* upcoming) {
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) __builtin_prefetch(upcoming + p * block.upcoming_stride);
}

template <class V, class M, int kRows, int kPanels, bool kFetch>
void multiply_block(const Block<M>& block) {
    constexpr std::int64_t kElements = M::kInputs * kPanelOutputs;
    constexpr int kVectors = kBlockVectors<V, kPanels>;
    typename V::F sums[kRows][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sums[r][v] = V::zero();
    }
    const auto* weights = block.weights;
    const auto* const end = weights + block.inputs * kPanelOutputs;
    const char* x = reinterpret_cast<const char*>(block.x);
    const std::int64_t row_bytes = block.x_stride * std::int64_t{sizeof(typename M::X)};
    const auto* upcoming = block.upcoming;
    const auto step = [&]() __attribute__((always_inline)) {
        if constexpr (kFetch) {
            fetch_step<kPanels>(block, upcoming);
            upcoming += block.fetch_step;
        }
        multiply_step<V, M, kRows, kPanels, 0>(weights, block.panel_stride, x, row_bytes, sums);
        if constexpr (M::kSteps == 2)
            multiply_step<V, M, kRows, kPanels, 1>(weights, block.panel_stride, x, row_bytes, sums);
        x += M::kInputs * sizeof(typename M::X);
        weights += kElements;
    };
    // Four steps at a time where that gives the processor work.
    if constexpr (sizeof(typename M::Weight) == 4 && kPanels == 1 && kRows > 4) {
        const auto* const most = weights + block.inputs / 4 * 4 * kPanelOutputs;
        while (weights != most) {
            step();
            step();
            step();
            step();
        }
    }
    while (weights < end) step();
    finish_block<V, M, kRows, kPanels>(block, sums);
}

}  // namespace
}  // namespace dualpace
