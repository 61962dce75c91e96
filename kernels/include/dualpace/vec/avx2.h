// Eight floats in a 256-bit register: AVX2, FMA and F16C. See generic.h for what each operation
// means.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "dualpace/element.h"

namespace dualpace {
namespace {

struct Avx2 {
    static constexpr int kLanes = 8;
    static constexpr int kColumns[4] = {8, 4, 4, 2};
    static constexpr int kWideningColumns[4] = {8, 4, 3, 2};
    static constexpr int kKeysOfFour = 3;
    static constexpr int kWideningKeysOfFour = 2;
    static constexpr int kMaxRows = 6;
    static constexpr int kMaxPairedRows = 5;
    static constexpr int kMaxWideRows = 3;
    static constexpr bool kWidensFirst = true;
    static constexpr bool kFastQuanta = true;

    using F = __m256;
    using Q = __m256i;

    static F splat(float x) { return _mm256_set1_ps(x); }
    static F zero() { return _mm256_setzero_ps(); }

    static F load(const float* p) { return _mm256_loadu_ps(p); }
    static F load(const Half* p) { return _mm256_cvtph_ps(load_16_bits(p)); }
    // Each word into the upper half of a lane, by one shuffle: multiply-adds are left their units.
    static F load(const BFloat16* p) {
        constexpr char kNone = -128;
        const __m256i places = _mm256_setr_epi8(
            kNone, kNone, 0, 1, kNone, kNone, 2, 3, kNone, kNone, 4, 5, kNone, kNone, 6, 7, kNone,
            kNone, 8, 9, kNone, kNone, 10, 11, kNone, kNone, 12, 13, kNone, kNone, 14, 15);
        const __m256i words = _mm256_broadcastsi128_si256(load_16_bits(p));
        return _mm256_castsi256_ps(_mm256_shuffle_epi8(words, places));
    }
    static F load(const std::int8_t* p) {
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    }
    static F load_even(const BFloat16* p) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(load_pairs(p), 16));
    }
    static F load_odd(const BFloat16* p) {
        return _mm256_castsi256_ps(
            _mm256_and_si256(load_pairs(p), _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
    }
    static F hold(F v) {
        asm("" : "+x"(v));
        return v;
    }
    static void store(float* p, F v) { _mm256_storeu_ps(p, v); }
    static void store(Half* p, F v) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                         _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
    static void store(BFloat16* p, F v) {
        const __m256i words = round_to_bfloat16(v);
        _mm_storeu_si128(
            reinterpret_cast<__m128i*>(p),
            _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
    }

    static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
    static F add(F a, F b) { return _mm256_add_ps(a, b); }
    static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
    static F div(F a, F b) { return _mm256_div_ps(a, b); }
    static F max(F a, F b) { return _mm256_max_ps(a, b); }
    static F min(F a, F b) { return _mm256_min_ps(a, b); }
    static F last_bits_as_exponent(F v) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(v), 23));
    }

    static Q load_quanta(const std::int16_t* p) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    }
    static Q load_quanta(const std::int8_t* p) {
        const __m128i first = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
        const __m128i second = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 16));
        return _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(first, second));
    }
    static Q splat_quanta(const std::int16_t* p) {
        int pair;
        std::memcpy(&pair, p, sizeof pair);
        return _mm256_set1_epi32(pair);
    }
    static Q zero_quanta() { return _mm256_setzero_si256(); }
    static Q dot_quanta(Q a, Q b, Q sum) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
    static void finish_here(F& v) { asm volatile("" : "+x"(v)); }
    static void finish_here(Q& v) { asm volatile("" : "+x"(v)); }
    static F widen_quanta(Q v) { return _mm256_cvtepi32_ps(v); }
    static void store_quanta(std::int16_t* p, Q v) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
    }
    static void store_quanta(std::int16_t* p, F v) {
        const __m256i words = _mm256_cvtps_epi32(v);
        _mm_storeu_si128(
            reinterpret_cast<__m128i*>(p),
            _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
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
    static void store_sums(float* p, const F* v) {
        const F halves = sum_four(v[0], v[1], v[2], v[3]);
        _mm_storeu_ps(p,
                      _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1)));
    }

  private:
    template <class T>
    static __m128i load_16_bits(const T* p) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    }
    static __m256i load_pairs(const BFloat16* p) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    }
    // To nearest, ties to even, in the lower half of each word. Not a number stays so.
    static __m256i round_to_bfloat16(F v) {
        const __m256i bits = _mm256_castps_si256(v);
        const __m256i lowest = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i half = _mm256_add_epi32(lowest, _mm256_set1_epi32(0x7fff));
        const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
        const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan);
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

}  // namespace
}  // namespace dualpace
