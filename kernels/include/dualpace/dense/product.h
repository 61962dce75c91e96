// Products of rows with panels of weights, written once over any vector type and any format of the
// weights. Private to dense_template.h.
//
// A block of rows by one or two panels is kept in registers while the inner dimension is walked:
// each weight is loaded and widened once for all rows of the block. The inner dimension is cut into
// stretches whose weights stay in the first cache while all blocks of rows pass over them. So
// weights come from memory once, whatever the number of rows. Each of the first blocks fetches its
// share of the next stretch: one alone would ask for it faster than memory gives, and the others
// would leave memory idle.
//
// Each element is a sum over one stretch in order, then over the stretches in order. Neither the
// number of rows nor the thread changes a bit of it.
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
    std::int64_t fetch_step;  // elements of it in each step; 0: fetches nothing
    std::int64_t inputs;
    const float* scales;  // of the first panel; null: none
    std::int64_t scale_stride;
    bool first_stretch;
    float* tile;
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

template <class V, class M, int kRows, int kPanels, bool kFetch>
void multiply_block(const Block<M>& block) {
    constexpr std::int64_t kElements = M::kInputs * kPanelOutputs;
    typename V::F sums[kRows][kBlockVectors<V, kPanels>];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < kBlockVectors<V, kPanels>; ++v) sums[r][v] = V::zero();
    }
    const auto* weights = block.weights;
    const auto* const end = weights + block.inputs * kPanelOutputs;
    const char* x = reinterpret_cast<const char*>(block.x);
    const std::int64_t row_bytes = block.x_stride * std::int64_t{sizeof(typename M::X)};
    const auto* upcoming = block.upcoming;
    for (; weights < end; weights += kElements) {
        if constexpr (kFetch) {
#pragma GCC unroll 2
            for (int p = 0; p < kPanels; ++p)
                __builtin_prefetch(upcoming + p * block.upcoming_stride);
            upcoming += block.fetch_step;
        }
        multiply_step<V, M, kRows, kPanels, 0>(weights, block.panel_stride, x, row_bytes, sums);
        if constexpr (M::kSteps == 2)
            multiply_step<V, M, kRows, kPanels, 1>(weights, block.panel_stride, x, row_bytes, sums);
        x += M::kInputs * sizeof(typename M::X);
    }
    finish_block<V, M, kRows, kPanels>(block, sums);
}

template <class V, class M, int kRows, int kPanels>
DUALPACE_INLINE void multiply_rows(const Block<M>& block) {
    if (block.fetch_step != 0) {
        multiply_block<V, M, kRows, kPanels, true>(block);
    } else {
        multiply_block<V, M, kRows, kPanels, false>(block);
    }
}

// Chooses the code for a number of rows, from kRows down.
template <class V, class M, int kPanels, int kRows>
DUALPACE_INLINE void multiply_up_to(std::int64_t rows, const Block<M>& block) {
    if (rows == kRows) {
        multiply_rows<V, M, kRows, kPanels>(block);
    } else if constexpr (kRows > 1) {
        multiply_up_to<V, M, kPanels, kRows - 1>(rows, block);
    }
}

// Inputs of one stretch: those of a scale, or as many as take up to 16 KiB of a panel, in equal
// stretches of whole tiles.
template <class T>
std::int64_t stretch_inputs(const MatrixView& matrix) {
    if (matrix.format == MatrixFormat::kInt8 && matrix.group < matrix.inputs) return matrix.group;
    constexpr std::int64_t kMost = sizeof(T) == 4 ? 256 : 512;
    const std::int64_t stretches = (matrix.inputs + kMost - 1) / kMost;
    const std::int64_t equal = (matrix.inputs + stretches - 1) / stretches;
    return (equal + kTileInputs - 1) / kTileInputs * kTileInputs;
}

// Among how many blocks of rows the next stretch is shared out. A power of two, so that a share is
// a whole number of elements in each step.
inline std::int64_t fetch_shares(std::int64_t blocks) {
    constexpr std::int64_t kMost = 4;
    std::int64_t shares = 1;
    while (shares < kMost && 2 * shares <= blocks) shares *= 2;
    return shares;
}

// All rows over one stretch of one or two panels.
template <class V, class M, int kPanels>
void multiply_stretch(const ProductTask& task, Block<M> block) {
    constexpr int kNarrow = M::kSteps == 2 ? V::kMaxPairedRows : V::kMaxRows;
    constexpr int kMost = kPanels == 2 ? V::kMaxWideRows : kNarrow;
    const typename M::X* x = block.x;
    float* tile = block.tile;
    const std::int64_t blocks = (task.rows + kMost - 1) / kMost;
    const std::int64_t shares = fetch_shares(blocks);
    for (std::int64_t row = 0, index = 0; row < task.rows; ++index) {
        const std::int64_t rows = (task.rows - row + blocks - index - 1) / (blocks - index);
        block.x = x + row * block.x_stride;
        block.tile = tile + row * kTileOutputs;
        block.fetch_step = index < shares ? M::kInputs * kPanelOutputs / shares : 0;
        multiply_up_to<V, M, kPanels, kMost>(rows, block);
        block.upcoming += block.inputs * kPanelOutputs / shares;
        row += rows;
    }
}

template <class T>
const T* panel_of(const MatrixView& matrix, std::int64_t panel, std::int64_t input) {
    return reinterpret_cast<const T*>(matrix.panel(panel)) + input * kPanelOutputs;
}

// One panel at a time, or both.
template <class V, class M, int kPanels>
void multiply_panels(const ProductTask& task, const typename M::X* x, std::int64_t x_stride) {
    using T = typename M::Weight;
    const MatrixView& matrix = *task.matrix;
    const std::int64_t stretch = stretch_inputs<T>(matrix);
    const std::int64_t panels[2] = {task.panels.first, task.panels.second};
    for (int p = 0; p < 2; p += kPanels) {
        const bool last = p + kPanels == 2;
        const std::int64_t then = last ? task.upcoming.first : panels[1];
        for (std::int64_t input = 0, index = 0; input < matrix.inputs; input += stretch, ++index) {
            const std::int64_t left = matrix.inputs - input;
            const bool more = left > stretch;
            Block<M> block{};
            block.x = x + input;
            block.x_stride = x_stride;
            block.weights = panel_of<T>(matrix, panels[p], input);
            block.panel_stride = panel_of<T>(matrix, panels[1], input) - block.weights;
            block.upcoming = more ? panel_of<T>(matrix, panels[p], input + stretch)
                                  : panel_of<T>(matrix, then, 0);
            block.upcoming_stride =
                more ? block.panel_stride
                     : panel_of<T>(matrix, task.upcoming.second, 0) - block.upcoming;
            block.inputs = more ? stretch : left;
            if (matrix.format == MatrixFormat::kInt8) {
                const bool grouped = matrix.group < matrix.inputs;
                const std::int64_t at = grouped ? index * kPanelOutputs : 0;
                block.scales = matrix.panel_scales(panels[p]) + at;
                block.scale_stride = matrix.panel_scales(panels[1]) + at - block.scales;
            }
            block.first_stretch = input == 0;
            block.tile = task.tile + p * kPanelOutputs;
            multiply_stretch<V, M, kPanels>(task, block);
        }
    }
}

template <class V, class M>
void multiply(const ProductTask& task, const typename M::X* x, std::int64_t x_stride) {
    if (task.rows <= V::kMaxWideRows || V::kMaxWideRows == V::kMaxRows) {
        multiply_panels<V, M, 2>(task, x, x_stride);
    } else {
        multiply_panels<V, M, 1>(task, x, x_stride);
    }
}

template <class V>
void product(const ProductTask& task) {
    const float* x = task.x;
    switch (task.matrix->format) {
        case MatrixFormat::kFloat32: multiply<V, Widening<V, float>>(task, x, task.x_stride); break;
        case MatrixFormat::kBFloat16:
            multiply<V, Widening<V, BFloat16>>(task, x, task.x_stride);
            break;
        case MatrixFormat::kFloat16: multiply<V, Widening<V, Half>>(task, x, task.x_stride); break;
        case MatrixFormat::kInt8:
            multiply<V, Widening<V, std::int8_t>>(task, x, task.x_stride);
            break;
    }
}

template <class V>
void rounded_product(const ProductTask& task) {
    multiply<V, Pairing<V, BFloat16>>(task, task.rounded, task.rounded_stride);
}

template <class V>
void rounded_quantised_product(const ProductTask& task) {
    multiply<V, Pairing<V, std::int8_t>>(task, task.rounded, task.rounded_stride);
}

}  // namespace
}  // namespace dualpace
