// Products of a few rows with two panels of bfloat16 weights, on vectors: to the last bit what
// tiles give, so that a row's result does not depend on how many rows share its call.
//
// That needs the order of additions of tile/layout.h: sums of even and of odd inputs, which start
// anew with each tile's inputs. A product of two bfloat16 is exact in fp32.
#pragma once

#include <cstdint>

#include "dualpace/dense_kernels.h"
#include "dualpace/span/segments.h"
#include "dualpace/tile/flush.h"
#include "dualpace/vec/scalar.h"

namespace dualpace {
namespace {

constexpr int kFewRows = 4;
// Elements of a panel that one tile holds.
constexpr std::int64_t kTileElements = kTileInputs * kPanelOutputs;
// Tiles by which weights are fetched ahead.
constexpr std::int64_t kTilesAhead = 4;

constexpr std::int64_t whole_tiles(std::int64_t inputs) {
    return (inputs + kTileInputs - 1) / kTileInputs * kTileInputs;
}

// Two panels of weights, and what is to be fetched once they end.
struct WeightPair {
    const BFloat16* weights[2];
    const BFloat16* upcoming[2];

    void step() {
        for (int p = 0; p < 2; ++p) {
            weights[p] += kTileElements;
            upcoming[p] += kTileElements;
        }
    }
};

inline const BFloat16* bfloat_panel(const MatrixView& matrix, std::int64_t panel,
                                    std::int64_t input) {
    return reinterpret_cast<const BFloat16*>(matrix.panel(panel)) + input * kPanelOutputs;
}

// One tile's inputs of all rows: sums[r][p] += even + odd.
template <class V, int kRows>
DUALPACE_INLINE void multiply_tile_inputs(const WeightPair& pair,
                                          const float (&x)[kRows][kTileInputs],
                                          typename V::F (&sums)[kRows][2]) {
    using F = typename V::F;
    F even[kRows][2];
    F odd[kRows][2];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
        even[r][0] = even[r][1] = odd[r][0] = odd[r][1] = V::zero();
    }
    for (int i = 0; i < kTileInputs; i += 2) {
#pragma GCC unroll 2
        for (int p = 0; p < 2; ++p) {
            const BFloat16* const at = pair.weights[p] + i * kPanelOutputs;
            __builtin_prefetch(pair.upcoming[p] + i * kPanelOutputs);
            const F first = V::load_even(at);
            const F second = V::load_odd(at);
#pragma GCC unroll 4
            for (int r = 0; r < kRows; ++r) {
                even[r][p] = V::fma(first, V::splat(x[r][i]), even[r][p]);
                odd[r][p] = V::fma(second, V::splat(x[r][i + 1]), odd[r][p]);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int p = 0; p < 2; ++p) sums[r][p] = V::add(sums[r][p], V::add(even[r][p], odd[r][p]));
    }
}

template <class V, int kRows>
[[gnu::noinline]] void multiply_few(const ProductTask& task) {
    static_assert(V::kLanes == kPanelOutputs);
    const MatrixView& matrix = *task.matrix;
    const std::int64_t panels[2] = {task.panels.first, task.panels.second};
    const std::int64_t then[2] = {task.upcoming.first, task.upcoming.second};
    WeightPair pair;
    const std::int64_t ahead = kTilesAhead * kTileInputs;
    const std::int64_t inputs = whole_tiles(matrix.inputs);
    for (int p = 0; p < 2; ++p) {
        pair.weights[p] = bfloat_panel(matrix, panels[p], 0);
        pair.upcoming[p] = inputs > ahead ? bfloat_panel(matrix, panels[p], ahead)
                                          : bfloat_panel(matrix, then[p], 0);
    }
    typename V::F sums[kRows][2];
    for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = V::zero();
    for (std::int64_t input = 0; input < inputs; input += kTileInputs) {
        if (input + ahead == inputs) {
            for (int p = 0; p < 2; ++p) pair.upcoming[p] = bfloat_panel(matrix, then[p], 0);
        }
        alignas(64) float x[kRows][kTileInputs];
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
            const BFloat16* const from = task.rounded + r * task.rounded_stride + input;
            V::store(x[r], V::load(from));
            V::store(x[r] + V::kLanes, V::load(from + V::kLanes));
        }
        multiply_tile_inputs<V, kRows>(pair, x, sums);
        pair.step();
    }
    for (int r = 0; r < kRows; ++r) {
        for (int p = 0; p < 2; ++p)
            V::store(task.tile + r * kTileOutputs + p * kPanelOutputs, sums[r][p]);
    }
}

// For one to kFewRows rows.
template <class V>
void few_rows_product(const ProductTask& task) {
    const FlushedSubnormals mode;
    switch (task.rows) {
        case 1: multiply_few<V, 1>(task); break;
        case 2: multiply_few<V, 2>(task); break;
        case 3: multiply_few<V, 3>(task); break;
        default: multiply_few<V, kFewRows>(task); break;
    }
}

}  // namespace
}  // namespace dualpace
