// The part of decode attention that is compiled once for each instruction set: everything inside
// one span of keys.
#pragma once

#include <cstdint>

#include "dualpace/element.h"
#include "dualpace/isa.h"

namespace dualpace {

// Softmax is computed span by span and the spans are then folded in order. Spans start at multiples
// of this position, wherever threads or windows begin, so that the order of additions depends on
// the sequence alone. The last one takes a few keys more, where no more are left: a span costs
// something of its own.
inline constexpr std::int64_t kSpanKeys = 128;
inline constexpr std::int64_t kMostSpanKeys = kSpanKeys + 32;

// Most query heads of one task that is of several kv heads: so many that their scores, queries and
// sums stay in the first cache beside keys and values.
inline constexpr std::int64_t kMostHeadsTogether = 16;

// Floats between two heads of a packed query: head_dim rounded up to the widest vector, zero
// filled.
constexpr std::int64_t packed_head_dim(std::int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

// Softmax over some of the keys, not yet normalised, for some query heads.
struct Partial {
    float* acc;  // [heads, head_dim], sum over keys of weight * value
    float* max;  // [heads], largest score in units of log2
    float* sum;  // [heads], sum over keys of weight = 2^(score - max)
};

// Keys [first, last) of one sequence for some kv heads, all within one span.
struct KeySpan {
    const void* kv;              // the first kv head's keys in block 0
    const std::int32_t* blocks;  // the sequence's block table
    std::int64_t first;
    std::int64_t last;
};

struct SpanTask {
    const float* query;  // [kv_heads * group, packed_head_dim(head_dim)], from pack_query
    KeySpan keys;
    KeySpan upcoming;  // what will be asked for next, to be fetched meanwhile; may be empty
    ElementType kv_type;
    std::int64_t kv_heads;  // if more than one, kv_heads * group is at most kMostHeadsTogether
    std::int64_t group;     // query heads that share a kv head
    std::int64_t head_dim;
    std::int64_t block_size;
    std::int64_t block_stride;  // elements between two blocks
    std::int64_t value_offset;  // elements from a key to its value
};

struct SpanKernels {
    // Copies [heads, head_dim] into the packed layout, times `factor`.
    void (*pack_query)(const float* query, std::int64_t heads, std::int64_t head_dim, float factor,
                       float* packed);
    // Overwrites `result` with the softmax over the task's keys; there is at least one.
    void (*attend)(const SpanTask& task, const Partial& result);
    // Adds `later` to `total`.
    void (*fold)(const Partial& total, const Partial& later, std::int64_t heads,
                 std::int64_t head_dim);
    // Divides acc by sum.
    void (*normalise)(const Partial& total, std::int64_t heads, std::int64_t head_dim);
    // Does nothing but widen elements and multiply each for `group` heads (at most eight), as fast
    // as it goes; returns how many elements.
    std::int64_t (*peak)(ElementType type, std::int64_t group, std::int64_t steps, float* kept);

    // pack_query and attend for bfloat16 keys and values with queries and weights rounded to
    // bfloat16, on tiles; null where there are none. The packed query is their own, in the same
    // room, and each call is for one kv head.
    void (*pack_rounded_query)(const float* query, std::int64_t group, std::int64_t head_dim,
                               float factor, float* packed) = nullptr;
    void (*attend_rounded)(const SpanTask& task, const Partial& result) = nullptr;
};

extern const SpanKernels kSpanKernelsGeneric;
extern const SpanKernels kSpanKernelsPortable512;
#if defined(DUALPACE_X86)
extern const SpanKernels kSpanKernelsAvx2;
extern const SpanKernels kSpanKernelsAvx512;
#endif

// The level must be available, or a portable twin.
const SpanKernels& span_kernels(Isa isa);

}  // namespace dualpace
