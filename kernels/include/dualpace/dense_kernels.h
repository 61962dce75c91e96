// The parts of the dense stages that are compiled once for each instruction set.
#pragma once

#include <cstdint>

#include "dualpace/beside.h"
#include "dualpace/element.h"
#include "dualpace/isa.h"
#include "dualpace/matrix.h"

namespace dualpace {

// Outputs that one product task computes: two panels.
inline constexpr std::int64_t kTileOutputs = 2 * kPanelOutputs;
// Most rows of one product task.
inline constexpr std::int64_t kMaxTileRows = 256;

struct PanelPair {
    std::int64_t first;
    std::int64_t second;  // the first again, if there is no other
};

// Rows of whole numbers: x = quantum * scale, one scale for each row and kTileInputs inputs, the
// largest quantum among those kLargestQuantum. Where not all of those are finite numbers, the scale
// is no number.
struct QuantisedRows {
    const std::int16_t* quanta;  // [rows, stride], zeros behind the last input
    std::int64_t stride;         // a multiple of kTileInputs
    const float* scales;         // [rows, scale_stride]
    std::int64_t scale_stride;
};

inline QuantisedRows rows_from(QuantisedRows rows, std::int64_t row) {
    rows.quanta += row * rows.stride;
    rows.scales += row * rows.scale_stride;
    return rows;
}

// tile[r][0..16) = x[r] * panel pair.first, tile[r][16..32) = x[r] * panel pair.second.
struct ProductTask {
    const float* x;               // [rows, x_stride]
    std::int64_t x_stride;        // in elements
    const BFloat16* rounded;      // [rows, rounded_stride]: x in bfloat16, for rounded_product
    std::int64_t rounded_stride;  // a multiple of kTileInputs; zeros behind the last input
    QuantisedRows quantised;      // x for quantised_product
    std::int64_t rows;            // at most kMaxTileRows
    const MatrixView* matrix;
    PanelPair panels;
    PanelPair upcoming;  // what will be asked for next, to be fetched meanwhile
    FetchList* beside;   // what else is, as far as there are blocks of rows for it; null: nothing
    float* tile;         // [rows, kTileOutputs], on a cache line
};

enum class Activation { kSilu, kGeluTanh, kGelu };

enum class Finish {
    kStore,  // out = tile + bias
    kAdd,    // out += tile + bias
    kGate,   // out = activation(first panel + its bias) * (second panel + its bias)
    // out[i] = the greatest of tile[i], tile[i + n], ..., where n is `greatest_lanes`; no number
    // where one of those is not finite. Without bias; behind `outputs` the first one counts.
    kGreatest,
};

// What becomes of a finished tile.
struct FinishTask {
    const float* tile;
    std::int64_t rows;
    Finish finish;
    Activation activation;     // kGate only
    const float* first_bias;   // [16]; null: none
    const float* second_bias;  // [16]; null: none
    float* out;                // of the pair's first output; with kGreatest, of the pair
    std::int64_t out_stride;
    std::int64_t outputs;  // to write, at most 32; of kGate at most 16
};

struct DenseKernels {
    // Of fp32 activations; of any weights but int16.
    void (*product)(const ProductTask& task);
    // The same for bfloat16 weights with activations rounded to bfloat16, in the processor's own
    // bfloat16 arithmetic; null where there is none.
    void (*rounded_product)(const ProductTask& task);
    void (*finish)(const FinishTask& task);

    // out = x / rms(x) * weight, all [n]. rms(x)^2 = mean(x^2) + eps. In place is fine.
    void (*rms_norm)(const float* x, std::int64_t n, const float* weight, float eps, float* out);
    // x += y, both [n].
    void (*add)(float* x, const float* y, std::int64_t n);
    // out = activation(gate) * up, all [n].
    void (*gate)(Activation activation, const float* gate, const float* up, std::int64_t n,
                 float* out);
    // Turns pairs (head[i], head[half + i]) by the angles whose cosines and sines are in `cos_sin`
    // [half cosines, half sines], in place.
    void (*rotate)(float* head, const float* cos_sin, std::int64_t half);
    // Converts [n], rounding to nearest.
    void (*store)(const float* from, std::int64_t n, ElementType type, void* to);
    // The index of the greatest of [n] elements, the first of equals. `finite`: whether all are.
    std::int64_t (*argmax)(const float* x, std::int64_t n, bool* finite);
    // Raises `most` to the greatest of [n] elements; returns whether all are finite.
    bool (*greatest)(const float* x, std::int64_t n, float* most);
    // Does nothing but multiply-adds, as fast as they go; returns how many operations (two each).
    std::int64_t (*peak)(std::int64_t steps, float* kept);
    // The same in bfloat16 arithmetic; null where there is none.
    std::int64_t (*rounded_peak)(std::int64_t steps, float* kept);
    // rounded_product for int8 weights and an even number of inputs; null where there is none.
    void (*rounded_quantised_product)(const ProductTask& task) = nullptr;
    // Of quantised activations, for int16 weights, and for int8 where the number of inputs is even
    // and a scale is of all inputs or of a multiple of kTileInputs.
    void (*quantised_product)(const ProductTask& task) = nullptr;
    // Makes one row of QuantisedRows of x, [n].
    void (*quantise)(const float* x, std::int64_t n, std::int16_t* quanta, float* scales) = nullptr;
    // peak in int16 arithmetic.
    std::int64_t (*quantised_peak)(std::int64_t steps, float* kept) = nullptr;
    // Whether int16 arithmetic is faster than fp32 here.
    bool fast_quanta = false;
    // What Finish::kGreatest makes of a row of a tile.
    std::int64_t greatest_lanes = 0;
};

extern const DenseKernels kDenseKernelsGeneric;
extern const DenseKernels kDenseKernelsPortable512;
extern const DenseKernels kDenseKernelsPortableBf16;
#if defined(DUALPACE_X86)
extern const DenseKernels kDenseKernelsAvx2;
extern const DenseKernels kDenseKernelsAvx512;
extern const DenseKernels kDenseKernelsAvx512Vnni;
extern const DenseKernels kDenseKernelsAvx512Bf16;
#endif

// The level must be available, or a portable twin.
const DenseKernels& dense_kernels(Isa isa);

}  // namespace dualpace
