// Products of rows with panels of weights, written once over any vector type and any format of the
// weights. Private to dense_template.h.
//
// A block of rows by one or two panels is kept in registers while the inner dimension is walked:
// each weight is loaded and widened once for all rows of the block. The inner dimension is cut into
// stretches whose weights stay in the first cache while all blocks of rows pass over them. So
// weights come from memory once, whatever the number of rows. Each of the first blocks fetches its
// share of the next stretch: one alone would ask for it faster than memory gives, and the others
// would leave memory idle. Those fetch what the caller wants to have beside.
//
// Each element is a sum over one stretch in order, then over the stretches in order. Neither the
// number of rows nor the thread changes a bit of it.
#pragma once

#include <cstdint>

#include "dualpace/dense/quantised_block.h"

namespace dualpace {
namespace {

template <class V, class M, int kRows, int kPanels>
DUALPACE_INLINE void multiply_rows(const Block<M>& block) {
    if constexpr (M::kWhole) {
        if (block.fetch_step != 0) {
            multiply_quantised_block<V, M, kRows, kPanels, true>(block);
        } else {
            multiply_quantised_block<V, M, kRows, kPanels, false>(block);
        }
    } else if (block.fetch_step != 0) {
        multiply_block<V, M, kRows, kPanels, true>(block);
    } else {
        multiply_block<V, M, kRows, kPanels, false>(block);
    }
}

// Inputs whose weights stay in the first cache when they are widened for all rows at once.
constexpr std::int64_t kMostWidened = 512;
constexpr std::int64_t kMostWidenedToFloat = 256;

// Chooses the code for a number of rows, from kRows down.
template <class V, class M, int kPanels, int kRows>
DUALPACE_INLINE void multiply_up_to(std::int64_t rows, const Block<M>& block) {
    if (rows == kRows) {
        multiply_rows<V, M, kRows, kPanels>(block);
    } else if constexpr (kRows > 1) {
        multiply_up_to<V, M, kPanels, kRows - 1>(rows, block);
    }
}

// Inputs of one stretch: those of a scale, or as many as take up to 16 KiB of a panel as it is
// multiplied, in equal stretches of whole tiles.
template <class M>
std::int64_t stretch_inputs(const MatrixView& matrix) {
    if (matrix.format == MatrixFormat::kInt8 && matrix.group < matrix.inputs) return matrix.group;
    constexpr std::int64_t kMost = M::kWidens ? kMostWidenedToFloat : 512;
    const std::int64_t stretches = (matrix.inputs + kMost - 1) / kMost;
    const std::int64_t equal = (matrix.inputs + stretches - 1) / stretches;
    return (equal + kTileInputs - 1) / kTileInputs * kTileInputs;
}

// Among how many blocks of rows the next stretch is shared out: of all, or of half of them. A power
// of two, so that a share is a whole number of elements in each step.
inline std::int64_t fetch_shares(std::int64_t blocks, bool half) {
    constexpr std::int64_t kMost = 4;
    std::int64_t shares = 1;
    while (shares < kMost && 2 * shares * (half ? 2 : 1) <= blocks) shares *= 2;
    return shares;
}

// Most rows of a block.
template <class V, class M, int kPanels>
constexpr int most_rows() {
    if constexpr (kPanels == 2) return V::kMaxWideRows;
    return M::kSteps == 2 ? V::kMaxPairedRows : V::kMaxRows;
}

// Elements that a step of each block without a share fetches of what is wanted beside, so that all
// of it comes in the course of the task; no more than memory gives without holding up the products.
// Each panel's step fetches as many.
template <class V, class M, int kPanels>
std::int64_t beside_step(const ProductTask& task) {
    if (task.beside == nullptr) return 0;
    constexpr std::int64_t kMostBytes = 32;
    // A block fetches from one piece, and so as if each were as long as this.
    constexpr std::int64_t kLeastPiece = 2048;
    constexpr std::int64_t kMost = most_rows<V, M, kPanels>();
    const std::int64_t blocks = (task.rows + kMost - 1) / kMost;
    const std::int64_t lines = (blocks - fetch_shares(blocks, true)) * 2 * task.matrix->inputs;
    std::int64_t bytes = 0;
    for (const MemoryPiece* p = task.beside->next; p != task.beside->end; ++p)
        bytes += p->bytes() > kLeastPiece ? p->bytes() : kLeastPiece;
    if (lines == 0 || bytes == 0) return 0;
    const std::int64_t size = std::int64_t{sizeof(typename M::Weight)};
    const std::int64_t most = kMostBytes / size;
    const std::int64_t wanted = (bytes * M::kInputs / lines + size) / size;
    return wanted < most ? wanted : most;
}

// Makes a block fetch from a list, at most so many elements a step.
template <int kPanels, class M>
void fetch_beside(FetchList& list, std::int64_t most, Block<M>& block) {
    using T = typename M::Weight;
    const std::int64_t steps = block.inputs / M::kInputs;
    const std::int64_t all = kPanels * steps * std::int64_t{sizeof(T)};
    const std::int64_t wanted = (list.next->bytes() + all - 1) / all;
    const std::int64_t step = wanted < most ? wanted : most;
    block.upcoming = reinterpret_cast<const T*>(list.next->at);
    block.upcoming_stride = steps * step;
    block.fetch_step = step;
    list.next->at += all * step;
    if (list.next->at >= list.next->end) ++list.next;
}

// All rows over one stretch of one or two panels.
template <class V, class M, int kPanels>
void multiply_stretch(const ProductTask& task, Block<M> block, std::int64_t beside) {
    constexpr int kMost = most_rows<V, M, kPanels>();
    const typename M::X* x = block.x;
    const float* x_scales = block.x_scales;
    float* tile = block.tile;
    const std::int64_t blocks = (task.rows + kMost - 1) / kMost;
    const std::int64_t shares = fetch_shares(blocks, beside != 0);
    const auto* const upcoming = block.upcoming;
    const std::int64_t upcoming_stride = block.upcoming_stride;
    const std::int64_t share = block.inputs / M::kInputs * (block.upcoming_step / shares);
    for (std::int64_t row = 0, index = 0; row < task.rows; ++index) {
        const std::int64_t rows = (task.rows - row + blocks - index - 1) / (blocks - index);
        block.x = x + row * block.x_stride;
        block.x_scales = x_scales + row * block.x_scale_stride;
        block.tile = tile + row * kTileOutputs;
        block.fetch_step = 0;
        if (index < shares) {
            block.upcoming = upcoming + index * share;
            block.upcoming_stride = upcoming_stride;
            block.fetch_step = block.upcoming_step / shares;
        } else if (beside != 0 && task.beside->next != task.beside->end) {
            fetch_beside<kPanels>(*task.beside, beside, block);
        }
        multiply_up_to<V, M, kPanels, kMost>(rows, block);
        row += rows;
    }
}

// Blocks of rows that widen weights each for itself.
constexpr std::int64_t kFewBlocks = 2;

// What widened blocks have in common with those they are widened from; fetches are counted in
// elements of `Wide`, in steps of as many inputs as its arithmetic takes.
template <class Wide, class M>
Block<Wide> widened_block(const Block<M>& block, const typename Wide::Weight* widened) {
    constexpr std::int64_t kSmaller = sizeof(typename Wide::Weight) / sizeof(typename M::Weight);
    Block<Wide> wide{};
    wide.x = block.x;
    wide.x_stride = block.x_stride;
    wide.weights = widened;
    wide.panel_stride = block.inputs * kPanelOutputs;
    wide.upcoming = reinterpret_cast<const typename Wide::Weight*>(block.upcoming);
    wide.upcoming_stride = block.upcoming_stride / kSmaller;
    wide.upcoming_step = block.upcoming_step / kSmaller * Wide::kInputs / M::kInputs;
    wide.inputs = block.inputs;
    wide.scales = block.scales;
    wide.scale_stride = block.scale_stride;
    wide.first_stretch = block.first_stretch;
    wide.tile = block.tile;
    wide.x_scales = block.x_scales;
    wide.x_scale_stride = block.x_scale_stride;
    wide.stretch_scales = block.stretch_scales;
    return wide;
}

// As many bytes beside in each step of a widened block, in elements of `Wide`.
template <class Wide, class M>
constexpr std::int64_t widened_beside(std::int64_t beside) {
    constexpr std::int64_t kSmaller = sizeof(typename Wide::Weight) / sizeof(typename M::Weight);
    return (beside * Wide::kInputs + kSmaller * M::kInputs - 1) / (kSmaller * M::kInputs);
}

// multiply_stretch of weights of fewer bits, which are widened to fp32 once for all rows.
template <class V, class M, int kPanels>
[[gnu::noinline]] void multiply_as_floats(const ProductTask& task, const Block<M>& block,
                                          std::int64_t beside) {
    using Wide = Widening<V, float>;
    alignas(64) float widened[kPanels * kMostWidenedToFloat * kPanelOutputs];
    float* to = widened;
    const auto widen_step = [&](const typename M::Weight* from, auto step) {
        for (int column = 0; column < kPanelOutputs; column += V::kLanes) {
            V::store(to, M::template load<decltype(step)::value>(from + column * M::kInputs));
            to += V::kLanes;
        }
    };
    for (int p = 0; p < kPanels; ++p) {
        const auto* from = block.weights + p * block.panel_stride;
        for (std::int64_t input = 0; input < block.inputs; input += M::kInputs) {
            widen_step(from, Count<0>{});
            if constexpr (M::kSteps == 2) widen_step(from, Count<1>{});
            from += M::kInputs * kPanelOutputs;
        }
    }
    multiply_stretch<V, Wide, kPanels>(task, widened_block<Wide>(block, widened),
                                       widened_beside<Wide, M>(beside));
}

// multiply_stretch of int8 weights, which are widened to int16 once for all rows.
template <class V, int kPanels>
[[gnu::noinline]] void multiply_widened(const ProductTask& task,
                                        const Block<Quantised<V, std::int8_t>>& block,
                                        std::int64_t beside) {
    alignas(64) std::int16_t widened[kPanels * kMostWidened * kPanelOutputs];
    std::int16_t* to = widened;
    for (int p = 0; p < kPanels; ++p) {
        const std::int8_t* from = block.weights + p * block.panel_stride;
        for (std::int64_t input = 0; input < block.inputs; input += 2) {
            for (int column = 0; column < kPanelOutputs; column += V::kLanes) {
                V::store_quanta(to, V::load_quanta(from + column));
                to += 2 * V::kLanes;
            }
            from += 2 * kPanelOutputs;
        }
    }
    using Wide = QuantisedInGroups<V>;
    multiply_stretch<V, Wide, kPanels>(task, widened_block<Wide>(block, widened),
                                       widened_beside<Wide, Quantised<V, std::int8_t>>(beside));
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
    const std::int64_t stretch = stretch_inputs<M>(matrix);
    // Two panels are for few rows, unless they are for all.
    constexpr bool kManyRows = kPanels == 1 || V::kMaxWideRows == V::kMaxRows;
    const bool many_blocks = kManyRows && task.rows > kFewBlocks * V::kMaxRows;
    const std::int64_t beside = beside_step<V, M, kPanels>(task);
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
            block.upcoming_step = M::kInputs * kPanelOutputs;
            block.inputs = more ? stretch : left;
            const bool grouped = matrix.group < matrix.inputs;
            if (matrix.scaled() && (grouped || !M::kWhole || !more)) {
                const std::int64_t at = grouped ? index * kPanelOutputs : 0;
                block.scales = matrix.panel_scales(panels[p]) + at;
                block.scale_stride = matrix.panel_scales(panels[1]) + at - block.scales;
            }
            if constexpr (M::kWhole) {
                block.x_scales = task.quantised.scales + input / kTileInputs;
                block.x_scale_stride = task.quantised.scale_stride;
                block.stretch_scales = grouped;
            }
            block.first_stretch = input == 0;
            block.tile = task.tile + p * kPanelOutputs;
            if constexpr (kManyRows && M::kWhole && sizeof(T) == 1) {
                if (many_blocks && block.inputs <= kMostWidened) {
                    multiply_widened<V, kPanels>(task, block, beside);
                    continue;
                }
            }
            if constexpr (kManyRows && V::kWidensFirst && M::kWidens && sizeof(T) < sizeof(float)) {
                if (many_blocks && block.inputs <= kMostWidenedToFloat) {
                    multiply_as_floats<V, M, kPanels>(task, block, beside);
                    continue;
                }
            }
            multiply_stretch<V, M, kPanels>(task, block, beside);
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
        case MatrixFormat::kInt16: break;
    }
}

template <class V>
void quantised_product(const ProductTask& task) {
    const QuantisedRows& x = task.quantised;
    if (task.matrix->format == MatrixFormat::kInt16) {
        multiply<V, Quantised<V, std::int16_t>>(task, x.quanta, x.stride);
    } else {
        multiply<V, Quantised<V, std::int8_t>>(task, x.quanta, x.stride);
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
