// One decode attention call, part by part, for the threads of any team. Knows no threads itself.
#pragma once

#include <vector>

#include "dualpace/attention_memory.h"
#include "dualpace/attention_plan.h"
#include "dualpace/beside.h"
#include "dualpace/paged_attention.h"
#include "dualpace/span_kernels.h"
#include "dualpace/tile_kernels.h"

namespace dualpace {

class AttentionRun;

// A place in a part of a plan: in front of a span, or at the part's end.
class SpanCursor {
  public:
    SpanCursor(const AttentionRun& run, std::int64_t part);

    bool more() const { return more_; }
    // Of the next span.
    const Cursor& at() const { return at_; }
    void pass();

  private:
    void settle();

    const AttentionRun* run_;
    Cursor at_;
    Cursor end_;
    bool more_ = true;
};

// Computes a part span by span. A strip that the part begins but does not end is left open, in out.
class AttentionWalk {
  public:
    AttentionWalk(const AttentionRun& run, std::int64_t part);

    bool more() const { return cursor_.more(); }
    void advance();

  private:
    const AttentionRun* run_;
    std::int64_t part_;
    SpanCursor cursor_;
    std::int64_t strip_ = -1;  // that task_ is of
    SpanTask task_{};
};

// All threads share one. Call run for every part of the plan (or walk through it), wait until all
// have returned, then call close for every part: the output is complete when those have returned.
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

    // Computes a part's spans.
    void run(std::int64_t part) const;

    // Folds what later parts computed for the strip that this part left open.
    void close(std::int64_t part) const;

    // Of the keys and values of a part.
    std::int64_t bytes(std::int64_t part) const;
    // Adds the memory that a span's keys and values lie in, but for pieces that are not worth
    // fetching ahead; returns its size, those included.
    std::int64_t list(const Cursor& at, std::vector<MemoryPiece>& pieces) const;

  private:
    friend class SpanCursor;
    friend class AttentionWalk;

    std::int64_t sequence_of(std::int64_t strip) const { return strip / plan_.strips_a_sequence(); }
    KeyRange keys_of(std::int64_t strip) const { return attended_keys(args_, sequence_of(strip)); }
    float* out_of(std::int64_t strip) const { return args_.out + strip * heads_ * args_.head_dim; }
    std::int64_t key_bytes() const;
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
