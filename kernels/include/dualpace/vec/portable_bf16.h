// The portable twin of AVX-512's bfloat16 arithmetic.
#pragma once

#include "dualpace/vec/portable512.h"

namespace dualpace {
namespace {

struct PortableBf16 : Portable512 {
    struct Pairs {
        BFloat16 elements[2 * kLanes];
    };

    static Pairs load_pairs(const BFloat16* p) {
        Pairs pairs;
        std::memcpy(&pairs, p, sizeof pairs);
        return pairs;
    }
    // Each lane's two neighbours from one row of quanta and from the next.
    static Pairs load_pairs(const std::int8_t* p) {
        Pairs pairs;
        for (int i = 0; i < 2 * kLanes; ++i)
            pairs.elements[i] = to_bfloat16(static_cast<float>(p[i % 2 * kLanes + i / 2]));
        return pairs;
    }
    static Pairs splat_pair(const BFloat16* p) {
        Pairs pairs;
        for (int i = 0; i < 2 * kLanes; ++i) pairs.elements[i] = p[i % 2];
        return pairs;
    }
    static F dot_pairs(const Pairs& a, const Pairs& b, F sum) {
        for (int i = 0; i < 2 * kLanes; ++i)
            sum[i / 2] += widen(a.elements[i]) * widen(b.elements[i]);
        return sum;
    }
};

}  // namespace
}  // namespace dualpace
