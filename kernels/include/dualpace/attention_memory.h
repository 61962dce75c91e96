// Where one decode attention call keeps what its parts compute.
#pragma once

#include <cstdint>

#include "dualpace/attention_plan.h"
#include "dualpace/paged_attention.h"
#include "dualpace/scratch.h"
#include "dualpace/span_kernels.h"

namespace dualpace {

// Where the parts of one call keep their state. Each part's share starts on a cache line of its
// own.
class Memory {
  public:
    Memory(const PagedAttentionArgs& args, const AttentionPlan& plan, Scratch& scratch)
        : heads_(plan.kv_heads_together() * args.group()), acc_size_(heads_ * args.head_dim) {
        query_size_ = round_up(heads_ * packed_head_dim(args.head_dim), kFloatsPerCacheLine);
        partial_size_ = round_up(acc_size_ + 2 * heads_, kFloatsPerCacheLine);
        part_size_ = query_size_ + 2 * partial_size_;
        const std::int64_t parts_size = plan.num_parts() * part_size_;
        base_ = scratch.reserve(parts_size + plan.num_slots() * partial_size_);
        slots_ = base_ + parts_size;
    }

    float* query(std::int64_t part) const { return base_ + part * part_size_; }
    Partial span_result(std::int64_t part) const { return partial_at(query(part) + query_size_); }
    Partial slot(std::int64_t index) const { return partial_at(slots_ + index * partial_size_); }
    // A strip's running total; its acc is the output itself.
    Partial total(std::int64_t part, float* out) const {
        Partial total = partial_at(query(part) + query_size_ + partial_size_);
        total.acc = out;
        return total;
    }

  private:
    Partial partial_at(float* p) const { return {p, p + acc_size_, p + acc_size_ + heads_}; }

    std::int64_t heads_;  // of a strip
    std::int64_t acc_size_;
    std::int64_t query_size_;
    std::int64_t partial_size_;
    std::int64_t part_size_;
    float* base_;
    float* slots_;
};

}  // namespace dualpace
