// The end of a step of a HostDecoder: from what the layers leave to the greatest logits. Private to
// host_decoder.cpp.
#pragma once

#include "dualpace/host_decoder.h"
#include "dualpace/team.h"

namespace dualpace {

// Prepared by one thread, then shared by all of a team.
class DecodeHead {
  public:
    // `hidden` [batch, hidden] is read by run.
    DecodeHead(const HostDecoder& decoder, const StepArgs& args, const float* hidden,
               HeadMemory& memory, const StepWay& way);

    void run(const Team& team) const;

  private:
    void order_rows();
    bool wanted(std::int64_t row) const;
    void tell_exact(std::int64_t row, const float* logits) const;

    const HostDecoder& decoder_;
    const StepArgs& args_;
    const DenseKernels& dense_;
    const bool rounding_;
    const float* const hidden_;
    float* normed_;            // [batch, hidden]
    float* prepared_;          // activations as a product takes them
    std::int64_t exact_rows_;  // the first ones; the others are screened
    float* scores_;            // [exact_rows, vocab]: logits, in the order of the head's rows
    float* screened_;          // [batch - exact_rows, greatest_values()]
    HeadMemory& memory_;
};

}  // namespace dualpace
