// The parts of products and of attention that run on tiles of bfloat16 (AMX), compiled once for
// each implementation of the tile layer.
#pragma once

#include <cstdint>

#include "dualpace/dense_kernels.h"
#include "dualpace/span_kernels.h"

namespace dualpace {

// Fewest rows of a product that go to tiles; the same sums come out of vectors below. By rule, not
// by measurement: up to four rows, the vectors' widened weights are multiplied while the next ones
// come from memory, and all sums fit the registers.
inline constexpr std::int64_t kLeastTileRows = 5;
// Fewest query heads that share a kv head whose attention goes to tiles. By rule: with fewer, the
// vectors' arithmetic takes no longer than keys and values take to come from memory.
inline constexpr std::int64_t kLeastTileHeads = 4;

struct TileKernels {
    // As DenseKernels has them.
    void (*rounded_product)(const ProductTask& task);
    std::int64_t (*rounded_peak)(std::int64_t steps, float* kept);
    // As SpanKernels has them.
    void (*pack_rounded_query)(const float* query, std::int64_t group, std::int64_t head_dim,
                               float factor, float* packed);
    void (*attend_rounded)(const SpanTask& task, const Partial& result);
};

extern const TileKernels kTileKernelsPortable;
#if defined(DUALPACE_X86)
extern const TileKernels kTileKernelsAmx;
#endif

}  // namespace dualpace
