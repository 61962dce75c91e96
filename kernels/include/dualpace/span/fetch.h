// Memory fetched ahead of those who read it, within one span and into the next. Private to
// span_template.h.
//
// Knows in which order rows are read, and nothing of what is computed with them. The distance is in
// bytes and stays the same: blocks lie anywhere in memory and stretches are short, so that what the
// processor fetches of its own accord comes late.
#pragma once

#include <cstdint>

#include "dualpace/span/segments.h"

namespace dualpace {
namespace {

// Long enough for memory to answer while the rows in between are computed with, short enough for
// the first cache. In a plain read of shuffled blocks this came nearest to a read in order; whole
// pages did worse.
constexpr std::int64_t kLeadBytes = std::int64_t{6} << 10;
// The first part of several reads its rows sooner than they are computed with on the whole.
constexpr std::int64_t kMoreLeadBytes = std::int64_t{4} << 10;  // for each further part

// As many keys of a span as can be fetched before it is asked for.
template <class T>
DUALPACE_INLINE KeySpan beginning(const SpanTask& task, const KeySpan& span) {
    constexpr std::int64_t kMostBytes = 2 * (kLeadBytes + kMoreLeadBytes);
    const std::int64_t key_bytes = task.kv_heads * task.head_dim * std::int64_t{sizeof(T)};
    const std::int64_t last = span.first + kMostBytes / key_bytes + 1;
    return {span.kv, span.blocks, span.first, last < span.last ? last : span.last};
}

// Lines that follow each other in memory.
struct Stretch {
    const char* at;
    const char* end;
};

// Memory to fetch while something else is computed, a little with each step: fetched in one go it
// would wait for memory while nothing is computed, and memory for computing afterwards. Into all
// caches, although each line is read once: fetches that pass those by (NTA) come at less than half
// the rate on Intel's Xeons, 14 of 32 GB/s on two cores, and no sooner on AMD's Zen 5.
struct Fetch {
    Stretch now;
    Stretch then;
    std::int64_t step;  // bytes with each step

    DUALPACE_INLINE void advance() {
        if (now.at >= now.end) {
            if (then.at >= then.end) return;
            now = then;
            then.at = then.end;
        }
        for (std::int64_t offset = 0; offset < step; offset += kCacheLine)
            __builtin_prefetch(now.at + offset);
        now.at += step;
    }
};

// A span's keys, its values, then those of the span that comes next, in stretches.
template <class T>
class FetchAhead {
  public:
    // For rows that so many parts compute with, one after the other.
    FetchAhead(const Span<T>& span, const SpanTask& task, std::int64_t parts)
        : span_(span), task_(task) {
        for (std::int64_t left = kLeadBytes + (parts - 1) * kMoreLeadBytes; left > 0;) {
            if (!open_rows()) return;
            const Stretch skipped = next_stretch(left);
            left -= skipped.end - skipped.at;
        }
    }

    // What to fetch in so many steps, in each of which so many bytes are computed with: as many.
    // (No division: one for each pass over a few keys shows in the time of the pass.)
    DUALPACE_INLINE Fetch take(std::int64_t bytes_a_step, std::int64_t steps) {
        owed_ += bytes_a_step * steps;
        const std::int64_t step = whole_lines(bytes_a_step + kCacheLine - 1);
        const std::int64_t owed = whole_lines(owed_);
        std::int64_t most = step * steps < owed ? step * steps : owed;
        Fetch fetch{next_stretch(most), {nullptr, nullptr}, step};
        most -= fetch.now.end - fetch.now.at;
        if (most > 0 && open_rows()) fetch.then = next_stretch(most);
        owed_ -= (fetch.now.end - fetch.now.at) + (fetch.then.end - fetch.then.at);
        return fetch;
    }

  private:
    static std::int64_t whole_lines(std::int64_t bytes) {
        return bytes & -std::int64_t{kCacheLine};
    }
    // The rest of the open rows, `most` bytes at most.
    DUALPACE_INLINE Stretch next_stretch(std::int64_t most) {
        const char* const first = rows_.at;
        const std::int64_t left = rows_.end - first;
        rows_.at += left < most ? left : most;
        return {first, rows_.at};
    }

    // False where nothing is known to follow.
    __attribute__((noinline)) bool open_rows() {
        int index = opened_;
        for (const SegmentList<T>* list : {&span_.segments, &span_.upcoming}) {
            if (index < 2 * list->size) {
                const bool values = index >= list->size;
                const Segment<T>& segment = list->items[values ? index - list->size : index];
                const T* first = segment.keys + (values ? task_.value_offset : 0);
                rows_.at = reinterpret_cast<const char*>(first);
                rows_.end = reinterpret_cast<const char*>(first + segment.count * task_.head_dim);
                ++opened_;
                return true;
            }
            index -= 2 * list->size;
        }
        owed_ = 0;
        return false;
    }

    const Span<T>& span_;
    const SpanTask& task_;
    Stretch rows_{nullptr, nullptr};
    std::int64_t owed_ = 0;
    int opened_ = 0;
};

}  // namespace
}  // namespace dualpace
