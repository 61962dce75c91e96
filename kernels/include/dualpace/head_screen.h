// Finds a row's greatest logit without computing all of them in full.
//
// All logits are computed in int16 arithmetic, which is faster; how far each may be from what it is
// in full is bounded, not estimated. Those that may be the greatest are then computed in full, by
// the same kernel that computes them all otherwise: the answer is the same.
#pragma once

#include <cstdint>
#include <memory>

#include "dualpace/dense_kernels.h"
#include "dualpace/matrix.h"

namespace dualpace {

struct GreatestLogit {
    std::int64_t index;  // the first of equals
    bool finite;         // whether all logits are; else index is 0
};

class HeadScreen {
  public:
    // A head in int16. Null where there can be none: the head has a bias, weights that are not
    // finite, or such a format already. `head` must outlive it.
    static std::unique_ptr<HeadScreen> of(const PackedLinear& head, int num_threads);

    const PackedLinear& packed() const { return packed_; }

    // Of the row x, [inputs], from its quanta and what `packed` makes of them with
    // Finish::kGreatest, [greatest_values()]. The kernels' product is what computes the head in
    // full.
    GreatestLogit greatest(const float* x, const QuantisedRows& quantised, const float* approximate,
                           const DenseKernels& kernels) const;

  private:
    HeadScreen(const PackedLinear& head, PackedLinear packed, double weight_norm,
               double weight_scale);

    const PackedLinear& head_;
    PackedLinear packed_;
    double weight_norm_;   // at least the 2-norm of any output's weights
    double weight_scale_;  // at least any output's scale
};

}  // namespace dualpace
