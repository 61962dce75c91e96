// Linear maps over rows of activations, shared by the threads of a team. Knows nothing of models.
#pragma once

#include <atomic>
#include <cstdint>

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

// Rows of activations; `rounded` is null unless the kernels have bfloat16 arithmetic and it is
// wanted.
struct LinearInput {
    const float* x;
    std::int64_t x_stride;
    const BFloat16* rounded;
    std::int64_t rounded_stride;
    std::int64_t rows;
};

// With Finish::kGate the linear's first half are gates, its second half what is gated; a half must
// be a multiple of kPanelOutputs.
struct LinearOutput {
    Finish finish;
    Activation activation;
    float* out;
    std::int64_t out_stride;
};

// The product that takes activations rounded to bfloat16, or null where these kernels have none for
// this matrix.
inline auto rounded_product_for(const DenseKernels& kernels, const MatrixView& matrix) {
    const bool pairs = matrix.format == MatrixFormat::kInt8 && matrix.inputs % 2 == 0;
    if (matrix.format == MatrixFormat::kBFloat16) return kernels.rounded_product;
    return pairs ? kernels.rounded_quantised_product : nullptr;
}

// One thread's share. All threads of the team call it with the same arguments; the result is there
// when all have returned. An element of the result depends on its own row alone, to the last bit.
void run_linear(const PackedLinear& linear, const LinearInput& input, const LinearOutput& output,
                const DenseKernels& kernels, const Team& team, Ticket& ticket);

// The whole call, on a team of its own: out = x W^T + b. With `rounding`, activations may be
// rounded to bfloat16 where the weights are of that type and the processor has the arithmetic.
void linear(const PackedLinear& linear, const float* x, std::int64_t x_stride, std::int64_t rows,
            float* out, std::int64_t out_stride, bool rounding, int num_threads, Isa isa);

// Runs `steps` steps of nothing but multiply-adds on each thread and returns the number of
// operations; 0 if `rounding` is asked for and the level has no bfloat16 arithmetic.
std::int64_t multiply_adds(std::int64_t steps, bool rounding, int num_threads, Isa isa);

}  // namespace dualpace
