// Where the keys of a span lie in memory: stretches of blocks. Private to span_template.h.
#pragma once

#include <cstdint>

#include "dualpace/span_kernels.h"

#define DUALPACE_INLINE inline __attribute__((always_inline))

namespace dualpace {
namespace {

static_assert(kSpanKeys % 16 == 0, "spans begin where a block of the smallest size may begin");
constexpr int kMaxSegments = kSpanKeys / 16;
// Few enough keys that those of any usual head size stay in the first cache while every head passes
// over them.
constexpr std::int64_t kMaxSegmentKeys = 32;
constexpr int kCacheLine = 64;

// Keys that lie one after the other within one block.
template <class T>
struct Segment {
    const T* keys;
    std::int64_t count;
};

template <class T>
struct SegmentList {
    Segment<T> items[kMaxSegments];
    int size;
};

template <class T>
DUALPACE_INLINE SegmentList<T> segments_of(const SpanTask& task, const KeySpan& span) {
    SegmentList<T> list;
    list.size = 0;
    const T* base = static_cast<const T*>(span.kv);
    std::int64_t index = span.first / task.block_size;
    std::int64_t slot = span.first % task.block_size;
    for (std::int64_t position = span.first; position < span.last;) {
        const std::int64_t room = task.block_size - slot;
        const std::int64_t left = span.last - position;
        const std::int64_t most = room < kMaxSegmentKeys ? room : kMaxSegmentKeys;
        Segment<T>& segment = list.items[list.size];
        segment.keys = base + span.blocks[index] * task.block_stride + slot * task.head_dim;
        segment.count = most < left ? most : left;
        position += segment.count;
        slot += segment.count;
        if (slot == task.block_size) {
            slot = 0;
            ++index;
        }
        ++list.size;
    }
    return list;
}

template <class T>
DUALPACE_INLINE void prefetch_rows(const T* rows, std::int64_t elements) {
    const char* p = reinterpret_cast<const char*>(rows);
    for (std::int64_t offset = 0; offset < elements * std::int64_t{sizeof(T)};
         offset += kCacheLine) {
        __builtin_prefetch(p + offset);
    }
}

// A span's keys and what to fetch while its values are read.
template <class T>
struct Span {
    SegmentList<T> segments;
    SegmentList<T> upcoming;
};

// Query heads that are taken at once, of `parts` such parts of those that share a kv head.
struct HeadPart {
    std::int64_t first;
    std::int64_t parts;
};

// A small number as a constant. (The library's own type could leave symbols that the linker merges
// across levels.)
template <int kCount>
struct Count {
    static constexpr int value = kCount;
};

// Distance between two keys in the score buffer: a power of two, so that a vector holds whole keys.
constexpr int padded_heads(int heads) { return heads == 3 ? 4 : heads; }

// One vector of elements, or half of one.
template <class V, bool kHalf, class T>
DUALPACE_INLINE typename V::F load(const T* p) {
    if constexpr (kHalf) {
        return V::load_half(p);
    } else {
        return V::load(p);
    }
}

}  // namespace
}  // namespace dualpace
