// Eight floats in a 256-bit register: AVX2, FMA and F16C. See generic.h for what each operation
// means.
#pragma once

#include <immintrin.h>

#include "dualpace/element.h"

namespace dualpace {
namespace {

struct Avx2 {
    static constexpr int kLanes = 8;
    static constexpr int kColumns[4] = {8, 4, 4, 2};

    using F = __m256;

    static F splat(float x) { return _mm256_set1_ps(x); }
    static F zero() { return _mm256_setzero_ps(); }

    static F load(const float* p) { return _mm256_loadu_ps(p); }
    static F load(const Half* p) { return _mm256_cvtph_ps(load_16_bits(p)); }
    static F load(const BFloat16* p) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16_bits(p)), 16));
    }
    static void store(float* p, F v) { _mm256_storeu_ps(p, v); }

    static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
    static F add(F a, F b) { return _mm256_add_ps(a, b); }
    static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
    static F div(F a, F b) { return _mm256_div_ps(a, b); }
    static F max(F a, F b) { return _mm256_max_ps(a, b); }
    static F round(F x) {
        return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    static F pow2(F n) {
        const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
        return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
    }

    template <int kDistance>
    static F swap(F v) {
        if constexpr (kDistance == 4) return _mm256_permute2f128_ps(v, v, 0x01);
        if constexpr (kDistance == 2) return _mm256_shuffle_ps(v, v, 0x4e);
        if constexpr (kDistance == 1) return _mm256_shuffle_ps(v, v, 0xb1);
    }

    static F sum_each(const F (&v)[kLanes]) {
        const F low = sum_four(v[0], v[1], v[2], v[3]);
        const F high = sum_four(v[4], v[5], v[6], v[7]);
        return add(_mm256_permute2f128_ps(low, high, 0x20),
                   _mm256_permute2f128_ps(low, high, 0x31));
    }

  private:
    template <class T>
    static __m128i load_16_bits(const T* p) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    }
    static F sum_two(F a, F b) { return add(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)); }
    // In each half: the sums over that half of a, b, c and d.
    static F sum_four(F a, F b, F c, F d) {
        const __m256d ab = _mm256_castps_pd(sum_two(a, b));
        const __m256d cd = _mm256_castps_pd(sum_two(c, d));
        return add(_mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd)),
                   _mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd)));
    }
};

using Vec = Avx2;

}  // namespace
}  // namespace dualpace
