// Attention within one span of keys, written once over any vector type. Include after one of the
// vector headers.
//
// Query heads that share a kv head are taken up to four at a time, so that each key and value is
// loaded and widened once for four heads. While a span's keys are read its values are fetched, and
// while its values are read the keys that come next are: memory has work throughout.
#pragma once

#include <cstdint>

#include "dualpace/span/scores.h"
#include "dualpace/span/segments.h"
#include "dualpace/span/values.h"

namespace dualpace {
namespace {

constexpr int kMaxHeadsAtOnce = 4;

// One to four query heads over the whole span. The first heads fetch the values, the last ones the
// upcoming keys.
template <class V, int kHeads, class T>
void attend_heads(const Span<T>& span, const SpanTask& task, std::int64_t head,
                  const Partial& result) {
    constexpr int kPadded = padded_heads(kHeads);
    alignas(64) float scores[kSpanKeys * kPadded + V::kLanes];
    const std::int64_t query_stride = packed_head_dim(task.head_dim);
    const float* query = task.query + head * query_stride;
    float* to = scores;
    for (int s = 0; s < span.segments.size; ++s) {
        score_segment<V, kHeads>(span.segments.items[s], task, query, query_stride, head == 0, to);
        to += span.segments.items[s].count * kPadded;
    }
    softmax_span<V, kHeads>(scores, task.keys.last - task.keys.first, result.max + head,
                            result.sum + head);
    weigh_values<V, kHeads, V::kColumns[kHeads - 1]>(
        span, task, scores, 0, head + kHeads == task.group, result.acc + head * task.head_dim);
}

template <class V, class T>
void attend_typed(const SpanTask& task, const Partial& result) {
    const Span<T> span{segments_of<T>(task, task.keys), segments_of<T>(task, task.upcoming)};
    std::int64_t parts = (task.group + kMaxHeadsAtOnce - 1) / kMaxHeadsAtOnce;
    for (std::int64_t head = 0; head < task.group; --parts) {
        const std::int64_t heads = (task.group - head + parts - 1) / parts;
        switch (heads) {
            case 1: attend_heads<V, 1>(span, task, head, result); break;
            case 2: attend_heads<V, 2>(span, task, head, result); break;
            case 3: attend_heads<V, 3>(span, task, head, result); break;
            default: attend_heads<V, 4>(span, task, head, result); break;
        }
        head += heads;
    }
}

template <class V>
void attend(const SpanTask& task, const Partial& result) {
    switch (task.kv_type) {
        case ElementType::kFloat32: attend_typed<V, float>(task, result); break;
        case ElementType::kFloat16: attend_typed<V, Half>(task, result); break;
        case ElementType::kBFloat16: attend_typed<V, BFloat16>(task, result); break;
    }
}

void pack_query(const float* query, std::int64_t group, std::int64_t head_dim, float factor,
                float* packed) {
    const std::int64_t stride = packed_head_dim(head_dim);
    for (std::int64_t h = 0; h < group; ++h) {
        for (std::int64_t d = 0; d < head_dim; ++d)
            packed[h * stride + d] = query[h * head_dim + d] * factor;
        for (std::int64_t d = head_dim; d < stride; ++d) packed[h * stride + d] = 0.0f;
    }
}

void fold(const Partial& total, const Partial& later, std::int64_t group, std::int64_t head_dim) {
    for (std::int64_t h = 0; h < group; ++h) {
        const float largest = total.max[h] > later.max[h] ? total.max[h] : later.max[h];
        const float keep = __builtin_exp2f(total.max[h] - largest);
        const float take = __builtin_exp2f(later.max[h] - largest);
        float* to = total.acc + h * head_dim;
        const float* from = later.acc + h * head_dim;
        for (std::int64_t d = 0; d < head_dim; ++d) to[d] = to[d] * keep + from[d] * take;
        total.sum[h] = total.sum[h] * keep + later.sum[h] * take;
        total.max[h] = largest;
    }
}

void normalise(const Partial& total, std::int64_t group, std::int64_t head_dim) {
    for (std::int64_t h = 0; h < group; ++h) {
        float* to = total.acc + h * head_dim;
        for (std::int64_t d = 0; d < head_dim; ++d) to[d] /= total.sum[h];
    }
}

template <class V>
constexpr SpanKernels span_table() {
    return {pack_query, attend<V>, fold, normalise};
}

}  // namespace
}  // namespace dualpace
