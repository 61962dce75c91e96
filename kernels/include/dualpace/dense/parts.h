// Vectors at the end of a row, where fewer elements are left than a vector holds. Private to
// dense_template.h.
#pragma once

#include <cstdint>

#include "dualpace/span/segments.h"

namespace dualpace {
namespace {

// Zeros behind the last element.
template <class V>
DUALPACE_INLINE typename V::F load_part(const float* p, std::int64_t count) {
    if (count >= V::kLanes) return V::load(p);
    alignas(64) float lanes[V::kLanes] = {};
    for (std::int64_t i = 0; i < count; ++i) lanes[i] = p[i];
    return V::load(lanes);
}

template <class V>
DUALPACE_INLINE void store_part(float* p, typename V::F v, std::int64_t count) {
    if (count >= V::kLanes) {
        V::store(p, v);
        return;
    }
    alignas(64) float lanes[V::kLanes];
    V::store(lanes, v);
    for (std::int64_t i = 0; i < count; ++i) p[i] = lanes[i];
}

template <class V>
DUALPACE_INLINE float first_lane(typename V::F v) {
    alignas(64) float lanes[V::kLanes];
    V::store(lanes, v);
    return lanes[0];
}

template <class V>
DUALPACE_INLINE float sum_lanes(typename V::F v) {
    alignas(64) float lanes[V::kLanes];
    V::store(lanes, v);
    for (int distance = V::kLanes / 2; distance > 0; distance /= 2) {
        for (int i = 0; i < distance; ++i) lanes[i] += lanes[i + distance];
    }
    return lanes[0];
}

}  // namespace
}  // namespace dualpace
