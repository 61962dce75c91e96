// Splits a decode batch over threads. Pure arithmetic on lengths: no KV, no threads, no instruction
// sets.
//
// The unit of order is the strip: one sequence's keys for some kv heads that are taken together,
// since their keys lie side by side in each block and memory gives long pieces faster than short
// ones. Strips lie one after the other on a line whose length is their number of keys, and each
// part gets an equal piece of that line, moved to the nearest edge of a span. A part therefore
// begins and ends within at most one strip each, and one long sequence alone is still shared by all
// parts.
#pragma once

#include <algorithm>
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
    // Spans are counted from key 0.
    std::int64_t first_span() const { return span_of(first); }
    std::int64_t end_span() const {
        const std::int64_t without_tail = last - (kMostSpanKeys - kSpanKeys);
        return std::max<std::int64_t>(1, (without_tail + kSpanKeys - 1) / kSpanKeys);
    }
    // Which has this key, or would.
    std::int64_t span_of(std::int64_t key) const {
        return std::min(key / kSpanKeys, end_span() - 1);
    }
    KeyRange keys_of(std::int64_t span) const {
        return {std::max(first, span * kSpanKeys),
                span + 1 < end_span() ? (span + 1) * kSpanKeys : last};
    }
};

KeyRange attended_keys(const PagedAttentionArgs& args, std::int64_t sequence);

// A place in the batch: in front of span `span` (counted from key 0) of strip `strip`.
struct Cursor {
    std::int64_t strip;
    std::int64_t span;

    bool operator==(const Cursor&) const = default;
};

class AttentionPlan {
  public:
    // Reuses the memory of earlier plans.
    void build(const PagedAttentionArgs& args, std::int64_t num_parts);

    // kv heads of a strip, a divisor of kv_heads.
    std::int64_t kv_heads_together() const { return together_; }
    // Of a sequence; strip s is of sequence s / strips, from kv head s % strips * together on.
    std::int64_t strips_a_sequence() const { return strips_; }

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
    void choose_together(const PagedAttentionArgs& args, std::int64_t num_parts);
    Cursor locate(const PagedAttentionArgs& args, std::int64_t key) const;
    void find_borrowed(const PagedAttentionArgs& args);

    std::int64_t together_ = 1;
    std::int64_t strips_ = 1;
    std::vector<std::int64_t> keys_before_;  // [batch + 1], over all strips
    std::vector<Cursor> bounds_;             // [num_parts + 1]
    std::vector<Borrowed> borrowed_;         // [num_parts]
    std::int64_t num_slots_ = 0;
};

}  // namespace dualpace
