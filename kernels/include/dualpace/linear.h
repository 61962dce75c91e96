// Linear maps over rows of activations, shared by the threads of a team. Knows nothing of models.
#pragma once

#include <atomic>
#include <cstdint>

#include "dualpace/beside.h"
#include "dualpace/dense_kernels.h"
#include "dualpace/matrix.h"
#include "dualpace/team.h"

namespace dualpace {

// Hands out the numbers from 0 on, each once. One for each phase of a call.
class Ticket {
  public:
    std::int64_t take() { return next_.fetch_add(1, std::memory_order_relaxed); }
    void reset() { next_.store(0, std::memory_order_relaxed); }

  private:
    alignas(64) std::atomic<std::int64_t> next_{0};
};

// Rows of activations, and the same as the product takes them: one of the two forms, or neither.
struct LinearInput {
    const float* x;
    std::int64_t x_stride;
    std::int64_t rows;
    const BFloat16* rounded;
    std::int64_t rounded_stride;
    QuantisedRows quantised;
};

// With Finish::kGate the linear's first half are gates, its second half what is gated; a half must
// be a multiple of kPanelOutputs. With Finish::kGreatest each row of `out` holds greatest_values().
struct LinearOutput {
    Finish finish;
    Activation activation;
    float* out;
    std::int64_t out_stride;
};

// How many values Finish::kGreatest makes of a row of outputs: for each two panels, one a lane.
inline std::int64_t greatest_values(const MatrixView& matrix, const DenseKernels& kernels) {
    return (matrix.num_panels() + 1) / 2 * kernels.greatest_lanes;
}

// Words of fp32 that the forms of `rows` rows of `inputs` take at most.
std::int64_t prepared_words(std::int64_t rows, std::int64_t inputs);

// Puts rows [rows, x_stride] into the form that the product with this matrix takes, in `memory` of
// prepared_words: narrow ones with `rounding`, where the kernels have an arithmetic for that, and
// where int16 weights want them. One thread's share; all threads of the team call it with the same
// arguments.
LinearInput prepare_input(const MatrixView& matrix, const float* x, std::int64_t x_stride,
                          std::int64_t rows, bool rounding, float* memory,
                          const DenseKernels& kernels, const Team& team);

// One thread's share. All threads of the team call it with the same arguments; the result is there
// when all have returned. An element of the result depends on its own row alone, to the last bit.
// `beside` is this thread's own; null: nothing.
void run_linear(const PackedLinear& linear, const LinearInput& input, const LinearOutput& output,
                const DenseKernels& kernels, const Team& team, Ticket& ticket,
                Beside* beside = nullptr);

// Rows to multiply: x [rows, the matrix's inputs], and `prepared` of prepared_words for them.
struct LinearRows {
    const PackedLinear& linear;
    const float* x;
    std::int64_t rows;
    bool rounding;
    float* prepared;
};

// prepare_input and run_linear, one thread's share. Ends when the whole team has ended it. Returns
// the rows as they were multiplied; they last as long as `prepared`.
LinearInput multiply_rows(const LinearRows& rows, const LinearOutput& output,
                          const DenseKernels& kernels, const Team& team, Ticket& ticket,
                          Beside* beside = nullptr);

// The whole call, on a team of its own: out = x W^T + b. With `rounding`, activations may be
// rounded: to bfloat16 where the weights are such numbers (bfloat16, int8) and the processor has
// the arithmetic, to whole numbers where it has not, the weights are int8 and that is faster. With
// int16 weights they are in any case.
void linear(const PackedLinear& linear, const float* x, std::int64_t x_stride, std::int64_t rows,
            float* out, std::int64_t out_stride, bool rounding, int num_threads, Isa isa);

// How products are computed.
enum class Arithmetic { kFloat32, kBFloat16, kInt16 };

std::string_view arithmetic_name(Arithmetic arithmetic);
// Throws std::invalid_argument that lists the known names.
Arithmetic parse_arithmetic(std::string_view name);

// The fastest arithmetic of a level that is at least as close as bfloat16.
Arithmetic narrow_arithmetic(Isa isa);

// Runs `steps` steps of nothing but multiply-adds on each thread and returns the number of
// operations; 0 if the level has no such arithmetic.
std::int64_t multiply_adds(std::int64_t steps, Arithmetic arithmetic, int num_threads, Isa isa);

}  // namespace dualpace
