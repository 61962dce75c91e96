// The layers of one step of a HostDecoder, as each thread of its team goes through them. Private to
// host_decoder.cpp.
#pragma once

#include <vector>

#include "dualpace/attention_run.h"
#include "dualpace/beside.h"
#include "dualpace/host_decoder.h"
#include "dualpace/team.h"

namespace dualpace {

class DecodeStep;

// What attention of every layer with this window has in common: sizes and tables, no memory.
PagedAttentionArgs attention_args(const DecoderShape& shape, const StepArgs& args,
                                  std::int64_t window);

// One layer's attention, for one thread to run parts of.
class LayerAttention {
  public:
    LayerAttention(const DecodeStep& step, std::int64_t layer);
    LayerAttention(const LayerAttention&) = delete;
    LayerAttention& operator=(const LayerAttention&) = delete;

    const AttentionRun& run() const { return run_; }

  private:
    const PagedAttentionArgs args_;
    const AttentionPlan& plan_;
    const Memory memory_;
    const AttentionRun run_;
};

// Prepared by one thread, then shared by all. Every stage ends when the whole team has ended it.
class DecodeStep {
  public:
    // `hidden` [batch, hidden]: all that one layer leaves for the next.
    DecodeStep(const HostDecoder& decoder, const std::vector<std::int64_t>& windows,
               const StepArgs& args, float* hidden, StepMemory& memory, const StepWay& way);

    void embed(const Team& team) const;
    // `beside` is what this thread does beside the products; null: nothing.
    void pre_attention(std::int64_t layer, const Team& team, Beside* beside) const;
    void attention(std::int64_t layer, const Team& team) const;
    void post_attention(std::int64_t layer, const Team& team, Beside* beside) const;

    // Ends what all threads have run the parts of.
    void close_attention(const LayerAttention& attention, const Team& team) const;
    std::int64_t batch() const { return args_.batch; }

  private:
    friend class LayerAttention;

    void prepare_attention(const std::vector<std::int64_t>& windows, StepMemory& memory);
    PagedAttentionArgs layer_attention_args(std::int64_t layer) const;
    const AttentionPlan& plan_of(std::int64_t layer) const;
    void write_row(const DecoderLayer& layer, std::int64_t row, char* kv) const;
    void store_heads(const float* heads, char* to) const;
    char* kv_of(std::int64_t layer) const;
    void norm_rows(const float* x, const float* weight, float* out, const Team& team) const;
    void multiply(const PackedLinear& linear, const float* x, const LinearOutput& output,
                  std::int64_t ticket, const Team& team, Beside* beside) const;
    void add_projection(const PackedLinear& linear, const float* x, const float* norm,
                        std::int64_t ticket, const Team& team, Beside* beside) const;

    const HostDecoder& decoder_;
    const DecoderShape& shape_;
    const StepArgs& args_;
    const DenseKernels& dense_;
    const SpanKernels& span_;
    const int num_threads_;
    const bool rounding_;
    const std::vector<std::int64_t>& windows_;
    float* const hidden_;  // [batch, hidden]
    float* normed_;        // [batch, hidden]
    float* qkv_;           // [batch, qkv_size]
    float* query_;         // [batch, query_size]
    float* attended_;      // [batch, query_size]
    float* inner_;         // [batch, inner]
    float* projected_;     // [batch, hidden]
    float* prepared_;      // activations as a product takes them
    StepMemory& memory_;
};

}  // namespace dualpace
