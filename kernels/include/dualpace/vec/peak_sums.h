// What the measurements of arithmetic limits share. Include after one of the vector headers.
#pragma once

#include "dualpace/span/segments.h"

namespace dualpace {
namespace {

// Independent sums: enough to hide the latency of a multiply-add, few enough for any register file.
constexpr int kPeakSums = 12;

// A number that depends on all sums, so that none is left out.
template <class V>
DUALPACE_INLINE float keep_sums(const typename V::F (&sums)[kPeakSums]) {
    float kept = 0.0f;
#pragma GCC unroll 12
    for (int i = 0; i < kPeakSums; ++i) {
        alignas(64) float lanes[V::kLanes];
        V::store(lanes, sums[i]);
        kept += lanes[0];
    }
    return kept;
}

}  // namespace
}  // namespace dualpace
