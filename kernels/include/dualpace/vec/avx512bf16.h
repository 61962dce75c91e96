// AVX-512 with its bfloat16 arithmetic. Processors that have it sum whole numbers, too.
#pragma once

#include <cstring>

#include "dualpace/vec/avx512vnni.h"

namespace dualpace {
namespace {

struct Avx512Bf16 : Avx512Vnni {
    // Thirty-two bfloat16: each lane holds two neighbours.
    using Pairs = __m512bh;

    static Pairs load_pairs(const BFloat16* p) { return (Pairs)_mm512_loadu_si512(p); }
    // Each lane's two neighbours from one row of quanta and from the next. Small whole numbers are
    // bfloat16: the lower half of their fp32 form is empty.
    static Pairs load_pairs(const std::int8_t* p) {
        const __m512i first = _mm512_castps_si512(load(p));
        const __m512i second = _mm512_castps_si512(load(p + kLanes));
        return (Pairs)_mm512_or_si512(_mm512_srli_epi32(first, 16), second);
    }
    static Pairs splat_pair(const BFloat16* p) {
        int pair;
        std::memcpy(&pair, p, sizeof pair);
        return (Pairs)_mm512_set1_epi32(pair);
    }
    // Adds to each lane of `sum` the products of its two pairs of neighbours.
    static F dot_pairs(Pairs a, Pairs b, F sum) { return _mm512_dpbf16_ps(sum, a, b); }
};

}  // namespace
}  // namespace dualpace
