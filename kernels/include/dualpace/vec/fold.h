// Over the lanes of one vector. Include after one of the vector headers.
#pragma once

#include "dualpace/span/segments.h"

namespace dualpace {
namespace {

// Combines the lanes whose index agrees modulo kPeriod and leaves the result in each of them.
template <class V, int kPeriod, class Combine>
DUALPACE_INLINE typename V::F fold_lanes(typename V::F v, Combine combine) {
    if constexpr (V::kLanes > 8 && kPeriod <= 8) v = combine(v, V::template swap<8>(v));
    if constexpr (kPeriod <= 4) v = combine(v, V::template swap<4>(v));
    if constexpr (kPeriod <= 2) v = combine(v, V::template swap<2>(v));
    if constexpr (kPeriod <= 1) v = combine(v, V::template swap<1>(v));
    return v;
}

}  // namespace
}  // namespace dualpace
