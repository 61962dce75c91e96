// A block of rows by one or two panels in whole numbers: products of pairs are summed in 32 bits,
// which hold those of kTileInputs inputs, and these sums are scaled and added up in fp32, in the
// tile. Weights are int16, or int8 that are widened as they are loaded. Private to dense/product.h.
#pragma once

#include "dualpace/dense/block.h"

namespace dualpace {
namespace {

// Elements of one output of two inputs that lie side by side: int8 has one, the next input's follow
// those of all outputs.
template <class T>
constexpr int kPairLanes = sizeof(T);

template <class V, class T, int kRows, int kPanels>
DUALPACE_INLINE void multiply_pairs(const T* weights, std::int64_t panel_stride,
                                    const std::int16_t* x, std::int64_t x_stride,
                                    typename V::Q (&sums)[kRows][kBlockVectors<V, kPanels>]) {
    constexpr int kVectors = kBlockVectors<V, kPanels>;
    constexpr int kPanelVectors = kVectors / kPanels;
    typename V::Q w[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
        w[v] = V::load_quanta(weights + (v / kPanelVectors) * panel_stride +
                              (v % kPanelVectors) * V::kLanes * kPairLanes<T>);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
        const typename V::Q a = V::splat_quanta(x + r * x_stride);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sums[r][v] = V::dot_quanta(w[v], a, sums[r][v]);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) V::finish_here(sums[r][v]);
    }
}

template <class V, int kPanels, class M>
DUALPACE_INLINE typename V::F output_scales(const Block<M>& block, int v) {
    constexpr int kPanelVectors = kBlockVectors<V, kPanels> / kPanels;
    return V::load(block.scales + v / kPanelVectors * block.scale_stride +
                   v % kPanelVectors * V::kLanes);
}

// Adds the sums of one group of inputs to the tile, which holds none yet if it is the `first`.
template <class V, class M, int kRows, int kPanels>
DUALPACE_INLINE void add_group(const Block<M>& block, std::int64_t group, bool first,
                               const typename V::Q (&sums)[kRows][kBlockVectors<V, kPanels>]) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
        const typename V::F scale = V::splat(block.x_scales[r * block.x_scale_stride + group]);
#pragma GCC unroll 8
        for (int v = 0; v < kBlockVectors<V, kPanels>; ++v) {
            float* const to = block.tile + r * kTileOutputs + v * V::kLanes;
            typename V::F sum = V::widen_quanta(sums[r][v]);
            if constexpr (M::kGrouped) {
                if (block.stretch_scales) sum = V::mul(sum, output_scales<V, kPanels>(block, v));
            }
            V::store(to, first ? V::mul(sum, scale) : V::fma(sum, scale, V::load(to)));
        }
    }
}

template <class V, class M, int kRows, int kPanels>
DUALPACE_INLINE void scale_tile(const Block<M>& block) {
#pragma GCC unroll 8
    for (int v = 0; v < kBlockVectors<V, kPanels>; ++v) {
        const typename V::F scale = output_scales<V, kPanels>(block, v);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
            float* const to = block.tile + r * kTileOutputs + v * V::kLanes;
            V::store(to, V::mul(V::load(to), scale));
        }
    }
}

template <class V, class M, int kRows, int kPanels, bool kFetch>
[[gnu::noinline]] void multiply_quantised_block(const Block<M>& block) {
    constexpr std::int64_t kElements = 2 * kPanelOutputs;
    const auto* weights = block.weights;
    const std::int16_t* x = block.x;
    const auto* upcoming = block.upcoming;
    const auto* const end = weights + block.inputs * kPanelOutputs;
    for (std::int64_t group = 0; weights < end; ++group) {
        const auto* const most = weights + kTileInputs * kPanelOutputs;
        const auto* const group_end = most < end ? most : end;
        typename V::Q sums[kRows][kBlockVectors<V, kPanels>];
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
            for (int v = 0; v < kBlockVectors<V, kPanels>; ++v) sums[r][v] = V::zero_quanta();
        }
        for (; weights < group_end; weights += kElements) {
            if constexpr (kFetch) {
                fetch_step<kPanels>(block, upcoming);
                upcoming += block.fetch_step;
            }
            multiply_pairs<V, typename M::Weight, kRows, kPanels>(weights, block.panel_stride, x,
                                                                  block.x_stride, sums);
            x += 2;
        }
        add_group<V, M, kRows, kPanels>(block, group, block.first_stretch && group == 0, sums);
    }
    if (block.scales != nullptr && !block.stretch_scales) scale_tile<V, M, kRows, kPanels>(block);
}

}  // namespace
}  // namespace dualpace
