// Decode attention over a paged KV cache: one query token for each sequence. Knows nothing of
// Python.
#pragma once

#include <cstdint>

#include "dualpace/element.h"
#include "dualpace/isa.h"

namespace dualpace {

// All arrays are dense and row-major. Nothing is owned.
struct PagedAttentionArgs {
    const float* query;           // [batch, heads, head_dim]
    const void* kv;               // [num_blocks, 2 (key, value), kv_heads, block_size, head_dim]
    const std::int32_t* tables;   // [num_tables, table_width], block ids
    const std::int32_t* rows;     // [batch], the table of each sequence
    const std::int32_t* lengths;  // [batch], keys of each sequence; 0 gives zeros
    float* out;                   // [batch, heads, head_dim]

    std::int64_t batch;
    std::int64_t heads;  // a multiple of kv_heads; head h reads kv head h / (heads / kv_heads)
    std::int64_t kv_heads;
    std::int64_t head_dim;  // a multiple of 8, at most kMaxHeadDim
    std::int64_t num_blocks;
    std::int64_t block_size;  // a multiple of 16
    std::int64_t num_tables;
    std::int64_t table_width;

    ElementType kv_type;
    float scale;
    std::int64_t window;  // attend to the last `window` keys only; 0: to all
    bool rounding;  // queries and weights may be rounded to bfloat16, where kv is of that type

    std::int64_t group() const { return heads / kv_heads; }
};

inline constexpr std::int64_t kHeadDimMultiple = 8;
inline constexpr std::int64_t kMaxHeadDim = 256;
inline constexpr std::int64_t kBlockSizeMultiple = 16;

// Throws std::invalid_argument naming the field, its value and what is allowed. Reads only those
// table entries that the computation will read.
void check_paged_attention(const PagedAttentionArgs& args);

// Computes out = softmax(scale * query K^T) V for every sequence. The arguments have passed
// check_paged_attention. Each output element is a function of its own sequence, the instruction set
// and nothing else: neither num_threads nor the rest of the batch changes a bit of it.
void paged_attention_decode(const PagedAttentionArgs& args, int num_threads, Isa isa);

// Runs `steps` steps of nothing but attention's multiply-adds and the widening before them on each
// thread, out of the first cache; returns the number of elements of keys and values.
std::int64_t attention_multiply_adds(std::int64_t steps, ElementType type, std::int64_t group,
                                     int num_threads, Isa isa);

}  // namespace dualpace
