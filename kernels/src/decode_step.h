// One step of a HostDecoder, as each thread of its team runs it. Private to host_decoder.cpp.
#pragma once

#include <vector>

#include "dualpace/attention_run.h"
#include "dualpace/host_decoder.h"
#include "dualpace/team.h"

namespace dualpace {

// Prepared by one thread, then shared by all. Every stage ends when the whole team has ended it.
class DecodeStep {
  public:
    // `hidden` [batch, hidden]: all that one layer leaves for the next.
    DecodeStep(const HostDecoder& decoder, const std::vector<std::int64_t>& windows,
               const StepArgs& args, float* hidden, StepMemory& memory, const StepWay& way);

    void embed(const Team& team) const;
    void pre_attention(std::int64_t layer, const Team& team) const;
    void attention(std::int64_t layer, const Team& team) const;
    void post_attention(std::int64_t layer, const Team& team) const;
    void head(const Team& team) const;

  private:
    void prepare_attention(const std::vector<std::int64_t>& windows, StepMemory& memory);
    PagedAttentionArgs attention_args(const DecoderLayer& layer) const;
    void write_row(const DecoderLayer& layer, std::int64_t row, char* kv) const;
    void store_heads(const float* heads, char* to) const;
    char* kv_of(std::int64_t layer) const;
    void norm_rows(const float* x, const float* weight, float* out, const Team& team) const;
    void multiply(const PackedLinear& linear, const float* x, const LinearOutput& output,
                  std::int64_t ticket, const Team& team) const;
    LinearInput multiply_rows(const PackedLinear& linear, const float* x, std::int64_t rows,
                              const LinearOutput& output, std::int64_t ticket,
                              const Team& team) const;
    void order_rows();
    bool wanted(std::int64_t row) const;
    void tell_exact(std::int64_t row, const float* logits) const;
    void add_projection(const PackedLinear& linear, const float* x, const float* norm,
                        std::int64_t ticket, const Team& team) const;

    const HostDecoder& decoder_;
    const DecoderShape& shape_;
    const StepArgs& args_;
    const DenseKernels& dense_;
    const SpanKernels& span_;
    const int num_threads_;
    const bool rounding_;
    const std::vector<std::int64_t>& windows_;
    float* const hidden_;      // [batch, hidden]
    float* normed_;            // [batch, hidden]
    float* qkv_;               // [batch, qkv_size]
    float* query_;             // [batch, query_size]
    float* attended_;          // [batch, query_size]
    float* inner_;             // [batch, inner]
    float* projected_;         // [batch, hidden]
    std::int64_t exact_rows_;  // of the head, the first ones; the others are screened
    float* scores_;            // [exact_rows, vocab]: logits, in the order of the head's rows
    float* screened_;          // [batch - exact_rows, greatest_values()]
    float* prepared_;          // activations as a product takes them
    StepMemory& memory_;
};

}  // namespace dualpace
