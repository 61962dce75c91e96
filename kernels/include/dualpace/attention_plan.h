// Splits a decode batch over threads. Pure arithmetic on lengths: no KV, no threads, no instruction
// sets.
//
// The unit of order is the strip: one sequence's keys for one kv head. Strips lie one after the
// other on a line whose length is their number of keys, and each part gets an equal piece of that
// line, moved to the nearest edge of a span. A part therefore begins and ends within at most one
// strip each, and one long sequence alone is still shared by all parts.
#pragma once

#include <cstdint>
#include <vector>

#include "dualpace/paged_attention.h"
#include "dualpace/span_kernels.h"

namespace dualpace {

// Keys [first, last) that a sequence attends to.
struct KeyRange {
    std::int64_t first;
    std::int64_t last;

    std::int64_t count() const { return last - first; }
    std::int64_t first_span() const { return first / kSpanKeys; }
    std::int64_t end_span() const { return (last + kSpanKeys - 1) / kSpanKeys; }
};

KeyRange attended_keys(const PagedAttentionArgs& args, std::int64_t sequence);

// A place in the batch: in front of span `span` (counted from key 0) of strip `strip` = sequence *
// kv_heads + kv head.
struct Cursor {
    std::int64_t strip;
    std::int64_t span;

    bool operator==(const Cursor&) const = default;
};

class AttentionPlan {
  public:
    // Reuses the memory of earlier plans.
    void build(const PagedAttentionArgs& args, std::int64_t num_parts);

    std::int64_t num_parts() const { return static_cast<std::int64_t>(bounds_.size()) - 1; }
    const Cursor& begin(std::int64_t part) const { return bounds_[static_cast<std::size_t>(part)]; }
    const Cursor& end(std::int64_t part) const { return begin(part + 1); }

    // Spans [first, last) of a strip that an earlier part began; their results are kept until that
    // part folds them.
    struct Borrowed {
        std::int64_t first;
        std::int64_t last;
        std::int64_t slot;  // where the first one's result is kept
    };
    const Borrowed& borrowed(std::int64_t part) const {
        return borrowed_[static_cast<std::size_t>(part)];
    }
    std::int64_t num_slots() const { return num_slots_; }

  private:
    Cursor locate(const PagedAttentionArgs& args, std::int64_t key) const;
    void find_borrowed(const PagedAttentionArgs& args);

    std::vector<std::int64_t> keys_before_;  // [batch + 1], over all kv heads
    std::vector<Cursor> bounds_;             // [num_parts + 1]
    std::vector<Borrowed> borrowed_;         // [num_parts]
    std::int64_t num_slots_ = 0;
};

}  // namespace dualpace
