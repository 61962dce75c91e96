// Where the keys of a span lie in memory: stretches of blocks. Private to span_template.h.
#pragma once

#include <cstdint>

#include "dualpace/span_kernels.h"

#define DUALPACE_INLINE inline __attribute__((always_inline))

namespace dualpace {
namespace {

static_assert(kSpanKeys % 16 == 0 && kMostSpanKeys % 16 == 0,
              "spans begin where a block of the smallest size may begin");
constexpr int kMaxSegments = kMostSpanKeys / 16 * kMostHeadsTogether;
// Few enough keys that those of any usual head size stay in the first cache while every head passes
// over them.
constexpr std::int64_t kMaxSegmentKeys = 32;
constexpr int kCacheLine = 64;

// Keys of one kv head that lie one after the other within one block.
template <class T>
struct Segment {
    const T* keys;
    std::int64_t count;
    std::int64_t before;  // keys of the span that come before them
    std::int64_t kv_head;
};

template <class T>
struct SegmentList {
    Segment<T> items[kMaxSegments];
    int size;
};

// As they lie in memory: block by block, in each block kv head by kv head.
template <class T>
DUALPACE_INLINE SegmentList<T> segments_of(const SpanTask& task, const KeySpan& span) {
    SegmentList<T> list;
    list.size = 0;
    const T* base = static_cast<const T*>(span.kv);
    const std::int32_t* block = span.blocks + span.first / task.block_size;
    std::int64_t slot = span.first % task.block_size;
    for (std::int64_t position = span.first; position < span.last;) {
        const std::int64_t room = task.block_size - slot;
        const std::int64_t left = span.last - position;
        const std::int64_t count = room < left ? room : left;
        const T* keys = base + *block++ * task.block_stride + slot * task.head_dim;
        slot = 0;
        for (std::int64_t h = 0; h < task.kv_heads; ++h) {
            for (std::int64_t i = 0; i < count; i += kMaxSegmentKeys) {
                const std::int64_t rest = count - i;
                list.items[list.size++] = {keys + i * task.head_dim,
                                           rest < kMaxSegmentKeys ? rest : kMaxSegmentKeys,
                                           position - span.first + i, h};
            }
            keys += task.block_size * task.head_dim;
        }
        position += count;
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

// Query heads that are taken at once, of 2^halvings such parts of those that share a kv head.
// `first` is counted over all kv heads of the task.
struct HeadPart {
    std::int64_t first;
    int halvings;

    // A part's of what is shared out among all.
    std::int64_t share(std::int64_t bytes) const { return bytes >> halvings; }
};

// A small number as a constant. (The library's own type could leave symbols that the linker merges
// across levels.)
template <int kCount>
struct Count {
    static constexpr int value = kCount;
};

// How scores, and the weights they become, lie: [key][head], of which a vector holds whole keys,
// unless there are three heads; then [head][key].
template <int kHeads>
struct ScoreLayout {
    static constexpr int kKey = kHeads;  // from one key to the next
    static constexpr int kHead = 1;
};
template <>
struct ScoreLayout<3> {
    static constexpr int kKey = 1;
    static constexpr int kHead = kMostSpanKeys + 16;
};

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
