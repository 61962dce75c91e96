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

SpanCursor::SpanCursor(const AttentionRun& run, std::int64_t part)
    : run_(&run), at_(run.plan_.begin(part)), end_(run.plan_.end(part)) {
    settle();
}

void SpanCursor::pass() {
    ++at_.span;
    settle();
}

// Goes on to the next strip that has keys, where this one has no more.
void SpanCursor::settle() {
    for (; at_.strip < end_.strip || (at_.strip == end_.strip && at_.span < end_.span);
         at_ = {at_.strip + 1, 0}) {
        const KeyRange keys = run_->keys_of(at_.strip);
        at_.span = std::max(at_.span, keys.first_span());
        if (keys.count() == 0 || at_.span >= keys.end_span()) continue;
        more_ = at_.strip < end_.strip || at_.span < end_.span;
        return;
    }
    more_ = false;
}

AttentionWalk::AttentionWalk(const AttentionRun& run, std::int64_t part)
    : run_(&run), part_(part), cursor_(run, part) {}

void AttentionWalk::advance() {
    const auto [strip, span] = cursor_.at();
    if (strip != strip_) task_ = run_->start_strip(part_, strip);
    strip_ = strip;
    run_->select_span(task_, strip, span);
    const Cursor& begin = run_->plan_.begin(part_);
    if (begin.span != 0 && begin.strip == strip) {
        // An earlier part began this strip, and will fold what is kept here.
        const AttentionPlan::Borrowed& spans = run_->plan_.borrowed(part_);
        run_->attend(task_, run_->memory_.slot(spans.slot + span - spans.first));
    } else {
        const KeyRange keys = run_->keys_of(strip);
        const std::int64_t heads = run_->heads_;
        const std::int64_t head_dim = run_->args_.head_dim;
        const Partial total = run_->memory_.total(part_, run_->out_of(strip));
        const Partial later = run_->memory_.span_result(part_);
        const bool first = span == keys.first_span();
        run_->attend(task_, first ? total : later);
        if (!first) run_->kernels_.fold(total, later, heads, head_dim);
        if (span + 1 == keys.end_span()) run_->kernels_.normalise(total, heads, head_dim);
    }
    cursor_.pass();
}

void AttentionRun::run(std::int64_t part) const {
    for (AttentionWalk walk(*this, part); walk.more();) walk.advance();
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

std::int64_t AttentionRun::bytes(std::int64_t part) const {
    std::int64_t keys = 0;
    for (SpanCursor cursor(*this, part); cursor.more(); cursor.pass()) {
        const KeySpan span = span_of(cursor.at().strip, cursor.at().span);
        keys += span.last - span.first;
    }
    return keys * key_bytes();
}

std::int64_t AttentionRun::list(const Cursor& at, std::vector<MemoryPiece>& pieces) const {
    // Shorter ones are in time if the span before them fetches them.
    constexpr std::int64_t kLeastBytes = 512;
    // So that what a task is to fetch can be cut to its size.
    constexpr std::int64_t kMostBytes = 16384;
    const KeySpan span = span_of(at.strip, at.span);
    const std::int64_t row = args_.head_dim * element_size(args_.kv_type);
    const std::int64_t head = kv_head_bytes(args_);
    const std::int64_t half = args_.kv_heads * head;
    const std::int64_t together = plan_.kv_heads_together();
    const auto add = [&](const char* from, std::int64_t bytes) {
        if (bytes < kLeastBytes) return;
        for (const char* const end = from + bytes; from < end; from += kMostBytes)
            pieces.push_back({from, std::min(from + kMostBytes, end)});
    };
    for (std::int64_t position = span.first; position < span.last;) {
        const std::int64_t slot = position % args_.block_size;
        const std::int64_t count = std::min(args_.block_size - slot, span.last - position);
        const char* const keys = static_cast<const char*>(span.kv) +
                                 span.blocks[position / args_.block_size] * 2 * half + slot * row;
        for (const char* const from : {keys, keys + half}) {
            if (count == args_.block_size) {
                add(from, together * head);
                continue;
            }
            for (std::int64_t h = 0; h < together; ++h) add(from + h * head, count * row);
        }
        position += count;
    }
    return (span.last - span.first) * key_bytes();
}

// Of a strip's keys and values at one position.
std::int64_t AttentionRun::key_bytes() const {
    return 2 * plan_.kv_heads_together() * args_.head_dim * element_size(args_.kv_type);
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
            keys.keys_of(span).first, keys.keys_of(span).last};
}

void zero_empty_sequences(const PagedAttentionArgs& args) {
    const std::int64_t row = args.heads * args.head_dim;
    for (std::int64_t b = 0; b < args.batch; ++b) {
        if (args.lengths[b] == 0) std::fill_n(args.out + b * row, row, 0.0f);
    }
}

}  // namespace dualpace
