// Everything about a call that could be wrong, found before the first byte of KV is read.
#include <cmath>
#include <stdexcept>
#include <string>

#include "dualpace/attention_plan.h"
#include "dualpace/paged_attention.h"

namespace dualpace {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

std::string text(std::int64_t n) { return std::to_string(n); }

void check_sizes(const PagedAttentionArgs& args) {
    if (args.head_dim % kHeadDimMultiple != 0 || args.head_dim < kHeadDimMultiple ||
        args.head_dim > kMaxHeadDim) {
        refuse("query: head_dim is " + text(args.head_dim) + ", it must be a multiple of " +
               text(kHeadDimMultiple) + " from " + text(kHeadDimMultiple) + " to " +
               text(kMaxHeadDim));
    }
    if (args.block_size % kBlockSizeMultiple != 0 || args.block_size < kBlockSizeMultiple) {
        refuse("kv: block_size is " + text(args.block_size) +
               ", it must be a positive multiple of " + text(kBlockSizeMultiple));
    }
    if (args.kv_heads < 1 || args.heads < 1 || args.heads % args.kv_heads != 0) {
        refuse("query: heads is " + text(args.heads) +
               ", it must be a positive multiple of kv's kv_heads, " + text(args.kv_heads));
    }
    if (!std::isfinite(args.scale)) refuse("scale: must be finite");
    if (args.window < 0)
        refuse("window: is " + text(args.window) + ", it must be 0 (no window) or positive");
}

void check_blocks(const PagedAttentionArgs& args, std::int64_t sequence) {
    const std::int64_t row = args.rows[sequence];
    const KeyRange keys = attended_keys(args, sequence);
    const std::int64_t end = (keys.last + args.block_size - 1) / args.block_size;
    if (end > args.table_width) {
        refuse("lengths[" + text(sequence) + "]: is " + text(keys.last) +
               ", block_tables has room for " + text(args.table_width * args.block_size));
    }
    const std::int32_t* table = args.tables + row * args.table_width;
    for (std::int64_t i = keys.first / args.block_size; i < end; ++i) {
        if (table[i] < 0 || table[i] >= args.num_blocks) {
            refuse("block_tables[" + text(row) + ", " + text(i) + "]: is " + text(table[i]) +
                   ", kv has blocks 0 to " + text(args.num_blocks - 1));
        }
    }
}

}  // namespace

void check_paged_attention(const PagedAttentionArgs& args) {
    check_sizes(args);
    for (std::int64_t b = 0; b < args.batch; ++b) {
        if (args.rows[b] < 0 || args.rows[b] >= args.num_tables) {
            refuse("rows[" + text(b) + "]: is " + text(args.rows[b]) +
                   ", block_tables has rows 0 to " + text(args.num_tables - 1));
        }
        if (args.lengths[b] < 0) {
            refuse("lengths[" + text(b) + "]: is " + text(args.lengths[b]) +
                   ", it must not be negative");
        }
        check_blocks(args, b);
    }
}

}  // namespace dualpace
