// Attention within one span of keys, written once over any vector type. Include after one of the
// vector headers.
//
// Query heads that share a kv head are taken in parts of up to four, so that each key and value is
// loaded and widened once for four heads. All parts pass over a few keys before the next ones are
// taken, so that keys come from memory once, and the kv heads follow each other as they do in
// memory; while a span's keys are read its values are fetched,
// and while its values are read the keys that come next are. Every part fetches its share: memory
// and arithmetic both have work throughout.
#pragma once

#include <cstdint>

#include "dualpace/span/fetch.h"
#include "dualpace/span/peak.h"
#include "dualpace/span/scores.h"
#include "dualpace/span/segments.h"
#include "dualpace/span/values.h"

namespace dualpace {
namespace {

constexpr int kMaxHeadsAtOnce = 4;
// Heads of one kv head whose scores are held at a time.
constexpr int kMaxBundleHeads = 2 * kMaxHeadsAtOnce;
// Of all kv heads of a task: with one query head each, every head is a part.
constexpr int kMaxParts = kMostHeadsTogether;

// Scores of one part.
template <class V>
struct ScoreBuffer {
    static_assert(3 * ScoreLayout<3>::kHead <= kMostSpanKeys * kMaxHeadsAtOnce);
    alignas(64) float scores[kMostSpanKeys * kMaxHeadsAtOnce + V::kLanes];
};

template <class V, int kHeads, class T>
void score_part(const Segment<T>& segment, const SpanTask& task, const HeadPart& heads,
                FetchAhead<T>& ahead, float* scores) {
    score_segment<V, kHeads>(segment, task, heads, ahead,
                             scores + segment.before * ScoreLayout<kHeads>::kKey);
}

template <class V, int kHeads>
void softmax_part(const SpanTask& task, const HeadPart& heads, const Partial& result,
                  float* scores) {
    const std::int64_t keys = task.keys.last - task.keys.first;
    float* const max = result.max + heads.first;
    float* const sum = result.sum + heads.first;
    if constexpr (kHeads == 3) {
        for (int h = 0; h < 3; ++h)
            softmax_span<V, 1>(scores + h * ScoreLayout<3>::kHead, keys, max + h, sum + h);
    } else {
        softmax_span<V, kHeads>(scores, keys, max, sum);
    }
}

template <class V, int kHeads, class T>
void weigh_part(const ValuePass<T>& pass) {
    constexpr bool kWidens = sizeof(T) < sizeof(float);
    weigh_values<V, kHeads, (kWidens ? V::kWideningColumns : V::kColumns)[kHeads - 1]>(pass, 0);
}

// Calls work with the number of heads as a constant.
template <class Work>
DUALPACE_INLINE void with_heads(std::int64_t heads, const Work& work) {
    switch (heads) {
        case 1: work(Count<1>{}); break;
        case 2: work(Count<2>{}); break;
        case 3: work(Count<3>{}); break;
        default: work(Count<4>{}); break;
    }
}

// Query heads that are taken over the whole span: `heads` of each kv head, from its `first` on.
struct Bundle {
    std::int64_t kv_heads;
    std::int64_t group;
    std::int64_t first;
    std::int64_t heads;  // at most kMaxBundleHeads

    int halvings() const { return heads > kMaxHeadsAtOnce ? 1 : 0; }
    std::int64_t parts() const { return std::int64_t{1} << halvings(); }
    // Calls work(number of heads as a constant, part, index of the part among all) for each part of
    // one kv head's.
    template <class Work>
    DUALPACE_INLINE void each_part(std::int64_t kv_head, const Work& work) const {
        for (std::int64_t part = 0; part < parts(); ++part) {
            const std::int64_t begin = heads * part >> halvings();
            const HeadPart which{kv_head * group + first + begin, halvings()};
            with_heads((heads * (part + 1) >> halvings()) - begin,
                       [&](auto count) { work(count, which, kv_head * parts() + part); });
        }
    }
};

template <class V, class T>
void attend_bundle(const Span<T>& span, const SpanTask& task, const Bundle& bundle,
                   const Partial& result) {
    ScoreBuffer<V> buffers[kMaxParts];
    FetchAhead<T> ahead(span, task, bundle.parts());
    for (int s = 0; s < span.segments.size; ++s) {
        const Segment<T>& segment = span.segments.items[s];
        bundle.each_part(segment.kv_head, [&](auto count, const HeadPart& which, auto index) {
            score_part<V, count.value>(segment, task, which, ahead, buffers[index].scores);
        });
    }
    for (std::int64_t kv_head = 0; kv_head < bundle.kv_heads; ++kv_head) {
        bundle.each_part(kv_head, [&](auto count, const HeadPart& which, auto index) {
            softmax_part<V, count.value>(task, which, result, buffers[index].scores);
        });
    }
    for (int s = 0; s < span.segments.size; ++s) {
        const Segment<T>& segment = span.segments.items[s];
        bundle.each_part(segment.kv_head, [&](auto count, const HeadPart& which, auto index) {
            weigh_part<V, count.value>(ValuePass<T>{
                segment, ahead, task, which,
                buffers[index].scores + segment.before * ScoreLayout<count.value>::kKey,
                result.acc + which.first * task.head_dim});
        });
    }
}

template <class V, class T>
void attend_typed(const SpanTask& task, const Partial& result) {
    const Span<T> span{segments_of<T>(task, task.keys),
                       segments_of<T>(task, beginning<T>(task, task.upcoming))};
    for (std::int64_t head = 0; head < task.group; head += kMaxBundleHeads) {
        const std::int64_t left = task.group - head;
        const Bundle bundle{task.kv_heads, task.group, head,
                            left < kMaxBundleHeads ? left : kMaxBundleHeads};
        attend_bundle<V>(span, task, bundle, result);
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

void pack_query(const float* query, std::int64_t heads, std::int64_t head_dim, float factor,
                float* packed) {
    const std::int64_t stride = packed_head_dim(head_dim);
    for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t d = 0; d < head_dim; ++d)
            packed[h * stride + d] = query[h * head_dim + d] * factor;
        for (std::int64_t d = head_dim; d < stride; ++d) packed[h * stride + d] = 0.0f;
    }
}

// to = to * keep + from * take, for a vector of columns or half of one.
template <class V, bool kHalf>
DUALPACE_INLINE void fold_columns(float* to, const float* from, float keep, float take) {
    const typename V::F kept = V::mul(load<V, kHalf>(to), V::splat(keep));
    store_sum<V, kHalf>(to, V::fma(load<V, kHalf>(from), V::splat(take), kept));
}

template <class V>
void fold(const Partial& total, const Partial& later, std::int64_t heads, std::int64_t head_dim) {
    for (std::int64_t first = 0; first < heads; first += V::kLanes) {
        const std::int64_t count = heads - first < V::kLanes ? heads - first : V::kLanes;
        alignas(64) float keep[V::kLanes] = {};
        alignas(64) float take[V::kLanes] = {};
        for (std::int64_t i = 0; i < count; ++i) {
            const std::int64_t h = first + i;
            const float largest = total.max[h] > later.max[h] ? total.max[h] : later.max[h];
            keep[i] = total.max[h] - largest;
            take[i] = later.max[h] - largest;
            total.max[h] = largest;
        }
        V::store(keep, exp2_nonpositive<V>(V::load(keep)));
        V::store(take, exp2_nonpositive<V>(V::load(take)));
        for (std::int64_t i = 0; i < count; ++i) {
            const std::int64_t h = first + i;
            total.sum[h] = total.sum[h] * keep[i] + later.sum[h] * take[i];
            float* const to = total.acc + h * head_dim;
            const float* const from = later.acc + h * head_dim;
            std::int64_t d = 0;
            for (; d + V::kLanes <= head_dim; d += V::kLanes)
                fold_columns<V, false>(to + d, from + d, keep[i], take[i]);
            if constexpr (V::kLanes > 8) {
                if (d < head_dim) fold_columns<V, true>(to + d, from + d, keep[i], take[i]);
            }
        }
    }
}

void normalise(const Partial& total, std::int64_t heads, std::int64_t head_dim) {
    for (std::int64_t h = 0; h < heads; ++h) {
        float* to = total.acc + h * head_dim;
        for (std::int64_t d = 0; d < head_dim; ++d) to[d] /= total.sum[h];
    }
}

template <class V>
constexpr SpanKernels span_table() {
    return {pack_query, attend<V>, fold<V>, normalise, span_peak<V>};
}

}  // namespace
}  // namespace dualpace
