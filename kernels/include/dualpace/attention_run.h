// One decode attention call, part by part, for the threads of any team. Knows no threads itself.
#pragma once

#include "dualpace/attention_memory.h"
#include "dualpace/attention_plan.h"
#include "dualpace/paged_attention.h"
#include "dualpace/span_kernels.h"
#include "dualpace/tile_kernels.h"

namespace dualpace {

// All threads share one. Call run for every part of the plan, wait until all have returned, then
// call close for every part: the output is complete when those have returned.
class AttentionRun {
  public:
    AttentionRun(const PagedAttentionArgs& args, const AttentionPlan& plan, const Memory& memory,
                 const SpanKernels& kernels)
        : args_(args),
          plan_(plan),
          memory_(memory),
          kernels_(kernels),
          heads_(plan.kv_heads_together() * args.group()),
          rounded_(args.rounding && args.kv_type == ElementType::kBFloat16 &&
                   args.group() >= kLeastTileHeads && kernels.attend_rounded != nullptr) {}

    // Computes a part's spans. A strip that this part begins but does not end is left open, in out.
    void run(std::int64_t part) const;

    // Folds what later parts computed for the strip that this part left open.
    void close(std::int64_t part) const;

  private:
    std::int64_t sequence_of(std::int64_t strip) const { return strip / plan_.strips_a_sequence(); }
    KeyRange keys_of(std::int64_t strip) const { return attended_keys(args_, sequence_of(strip)); }
    float* out_of(std::int64_t strip) const { return args_.out + strip * heads_ * args_.head_dim; }
    void run_borrowed(std::int64_t part) const;
    void run_strip(std::int64_t part, std::int64_t strip, std::int64_t end_span) const;
    SpanTask start_strip(std::int64_t part, std::int64_t strip) const;
    void select_span(SpanTask& task, std::int64_t strip, std::int64_t span) const;
    void pack_query(const float* query, float* packed) const;
    void attend(const SpanTask& task, const Partial& result) const;
    KeySpan span_of(std::int64_t strip, std::int64_t span) const;

    const PagedAttentionArgs& args_;
    const AttentionPlan& plan_;
    const Memory& memory_;
    const SpanKernels& kernels_;
    const std::int64_t heads_;  // query heads of a strip
    const bool rounded_;
};

// Zeros in the output of sequences without keys, which no part writes.
void zero_empty_sequences(const PagedAttentionArgs& args);

}  // namespace dualpace
