#include "dualpace/attention_run.h"

#include <algorithm>

namespace dualpace {
namespace {

constexpr float kLog2E = 1.44269504088896340736f;

std::int64_t element_size(ElementType type) { return type == ElementType::kFloat32 ? 4 : 2; }

// Of one block's keys, from one kv head to the next.
std::int64_t kv_head_bytes(const PagedAttentionArgs& args) {
    return args.block_size * args.head_dim * element_size(args.kv_type);
}

}  // namespace

void AttentionRun::run(std::int64_t part) const {
    const Cursor end = plan_.end(part);
    Cursor at = plan_.begin(part);
    if (at == end) return;
    if (at.span != 0) {
        run_borrowed(part);
        at = {at.strip + 1, 0};
    }
    for (; at.strip < end.strip; ++at.strip)
        run_strip(part, at.strip, keys_of(at.strip).end_span());
    if (at.strip == end.strip && end.span != 0) run_strip(part, at.strip, end.span);
}

void AttentionRun::close(std::int64_t part) const {
    const Cursor end = plan_.end(part);
    const Cursor begin = plan_.begin(part);
    if (end.span == 0 || (begin.strip == end.strip && begin.span != 0)) return;
    const Partial total = memory_.total(part, out_of(end.strip));
    for (std::int64_t later = part + 1;
         later < plan_.num_parts() && plan_.begin(later).strip == end.strip; ++later) {
        const AttentionPlan::Borrowed& spans = plan_.borrowed(later);
        for (std::int64_t i = 0; i < spans.last - spans.first; ++i) {
            kernels_.fold(total, memory_.slot(spans.slot + i), heads_, args_.head_dim);
        }
    }
    kernels_.normalise(total, heads_, args_.head_dim);
}

void AttentionRun::run_borrowed(std::int64_t part) const {
    const AttentionPlan::Borrowed& spans = plan_.borrowed(part);
    const std::int64_t strip = plan_.begin(part).strip;
    SpanTask task = start_strip(part, strip);
    for (std::int64_t span = spans.first; span < spans.last; ++span) {
        select_span(task, strip, span);
        attend(task, memory_.slot(spans.slot + span - spans.first));
    }
}

void AttentionRun::run_strip(std::int64_t part, std::int64_t strip, std::int64_t end_span) const {
    const KeyRange keys = keys_of(strip);
    if (keys.count() == 0) return;
    const Partial total = memory_.total(part, out_of(strip));
    const Partial later = memory_.span_result(part);
    SpanTask task = start_strip(part, strip);
    for (std::int64_t span = keys.first_span(); span < end_span; ++span) {
        const bool first = span == keys.first_span();
        select_span(task, strip, span);
        attend(task, first ? total : later);
        if (!first) kernels_.fold(total, later, heads_, args_.head_dim);
    }
    if (end_span == keys.end_span()) kernels_.normalise(total, heads_, args_.head_dim);
}

SpanTask AttentionRun::start_strip(std::int64_t part, std::int64_t strip) const {
    pack_query(args_.query + strip * heads_ * args_.head_dim, memory_.query(part));
    SpanTask task{};
    task.query = memory_.query(part);
    task.kv_type = args_.kv_type;
    task.kv_heads = plan_.kv_heads_together();
    task.group = args_.group();
    task.head_dim = args_.head_dim;
    task.block_size = args_.block_size;
    task.value_offset = args_.kv_heads * args_.block_size * args_.head_dim;
    task.block_stride = 2 * task.value_offset;
    return task;
}

void AttentionRun::pack_query(const float* query, float* packed) const {
    const float factor = args_.scale * kLog2E;
    if (!rounded_) {
        kernels_.pack_query(query, heads_, args_.head_dim, factor, packed);
        return;
    }
    for (std::int64_t head = 0; head < heads_; head += args_.group()) {
        kernels_.pack_rounded_query(query + head * args_.head_dim, args_.group(), args_.head_dim,
                                    factor, packed + head * packed_head_dim(args_.head_dim));
    }
}

void AttentionRun::attend(const SpanTask& task, const Partial& result) const {
    if (!rounded_) {
        kernels_.attend(task, result);
        return;
    }
    SpanTask one = task;
    one.kv_heads = 1;
    for (std::int64_t h = 0; h < task.kv_heads; ++h) {
        const std::int64_t head = h * args_.group();
        const std::int64_t offset = h * kv_head_bytes(args_);
        one.query = task.query + head * packed_head_dim(args_.head_dim);
        one.keys.kv = static_cast<const char*>(task.keys.kv) + offset;
        if (task.upcoming.kv != nullptr)
            one.upcoming.kv = static_cast<const char*>(task.upcoming.kv) + offset;
        kernels_.attend_rounded(
            one, {result.acc + head * args_.head_dim, result.max + head, result.sum + head});
    }
}

void AttentionRun::select_span(SpanTask& task, std::int64_t strip, std::int64_t span) const {
    task.keys = span_of(strip, span);
    if (span + 1 < keys_of(strip).end_span()) {
        task.upcoming = span_of(strip, span + 1);
    } else if (strip + 1 < args_.batch * plan_.strips_a_sequence()) {
        task.upcoming = span_of(strip + 1, keys_of(strip + 1).first_span());
    } else {
        task.upcoming = KeySpan{};
    }
}

KeySpan AttentionRun::span_of(std::int64_t strip, std::int64_t span) const {
    const KeyRange keys = keys_of(strip);
    const std::int64_t strip_bytes = plan_.kv_heads_together() * kv_head_bytes(args_);
    return {static_cast<const char*>(args_.kv) + strip % plan_.strips_a_sequence() * strip_bytes,
            args_.tables + args_.rows[sequence_of(strip)] * args_.table_width,
            std::max(keys.first, span * kSpanKeys), std::min(keys.last, (span + 1) * kSpanKeys)};
}

void zero_empty_sequences(const PagedAttentionArgs& args) {
    const std::int64_t row = args.heads * args.head_dim;
    for (std::int64_t b = 0; b < args.batch; ++b) {
        if (args.lengths[b] == 0) std::fill_n(args.out + b * row, row, 0.0f);
    }
}

}  // namespace dualpace
