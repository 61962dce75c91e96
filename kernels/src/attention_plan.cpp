#include "dualpace/attention_plan.h"

#include <algorithm>

namespace dualpace {
namespace {

// Fewest spans of a part, on average: parts differ by up to one.
constexpr std::int64_t kLeastSpans = 8;

}  // namespace

KeyRange attended_keys(const PagedAttentionArgs& args, std::int64_t sequence) {
    const std::int64_t length = args.lengths[sequence];
    const std::int64_t first =
        args.window > 0 ? std::max<std::int64_t>(0, length - args.window) : 0;
    return {first, length};
}

void AttentionPlan::build(const PagedAttentionArgs& args, std::int64_t num_parts) {
    choose_together(args, num_parts);
    keys_before_.resize(static_cast<std::size_t>(args.batch) + 1);
    keys_before_[0] = 0;
    for (std::int64_t b = 0; b < args.batch; ++b) {
        const auto i = static_cast<std::size_t>(b);
        keys_before_[i + 1] = keys_before_[i] + attended_keys(args, b).count() * strips_;
    }
    bounds_.resize(static_cast<std::size_t>(num_parts) + 1);
    for (std::int64_t part = 0; part <= num_parts; ++part) {
        bounds_[static_cast<std::size_t>(part)] =
            locate(args, keys_before_.back() * part / num_parts);
    }
    find_borrowed(args);
}

// As many as a call of the span kernels takes, as long as the parts stay about equal.
void AttentionPlan::choose_together(const PagedAttentionArgs& args, std::int64_t num_parts) {
    std::int64_t keys = 0;
    for (std::int64_t b = 0; b < args.batch; ++b) keys += attended_keys(args, b).count();
    const auto allowed = [&](std::int64_t together) {
        const std::int64_t strips = args.kv_heads / together;
        return args.kv_heads % together == 0 && together * args.group() <= kMostHeadsTogether &&
               keys * strips >= kLeastSpans * kSpanKeys * num_parts;
    };
    together_ = args.kv_heads;
    while (together_ > 1 && !allowed(together_)) --together_;
    strips_ = args.kv_heads / together_;
}

Cursor AttentionPlan::locate(const PagedAttentionArgs& args, std::int64_t key) const {
    const auto after = std::upper_bound(keys_before_.begin(), keys_before_.end(), key);
    if (after == keys_before_.end()) return {args.batch * strips_, 0};
    const std::int64_t sequence = after - keys_before_.begin() - 1;
    const KeyRange keys = attended_keys(args, sequence);
    const std::int64_t within = key - *(after - 1);
    const std::int64_t strip = sequence * strips_ + within / keys.count();
    const std::int64_t position = keys.first + within % keys.count();
    std::int64_t span = keys.span_of(position);
    const KeyRange edges = keys.keys_of(span);
    if (position - edges.first > edges.last - position) ++span;
    // The front of a strip has one name only, so that equal places compare equal.
    if (span >= keys.end_span()) return {strip + 1, 0};
    return {strip, span <= keys.first_span() ? 0 : span};
}

void AttentionPlan::find_borrowed(const PagedAttentionArgs& args) {
    borrowed_.resize(static_cast<std::size_t>(num_parts()));
    num_slots_ = 0;
    for (std::int64_t part = 0; part < num_parts(); ++part) {
        const Cursor& from = begin(part);
        Borrowed& spans = borrowed_[static_cast<std::size_t>(part)];
        spans = {0, 0, num_slots_};
        if (from.span == 0) continue;
        const std::int64_t strip_end = attended_keys(args, from.strip / strips_).end_span();
        spans.first = from.span;
        spans.last = end(part).strip == from.strip ? end(part).span : strip_end;
        num_slots_ += spans.last - spans.first;
    }
}

}  // namespace dualpace
