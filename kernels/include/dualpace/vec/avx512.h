// Sixteen floats in a 512-bit register: AVX-512 F, BW, DQ and VL. See generic.h for what each
// operation means.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "dualpace/element.h"

namespace dualpace {
namespace {

struct Avx512 {
    static constexpr int kLanes = 16;
    static constexpr int kColumns[4] = {8, 8, 4, 4};
    static constexpr const int (&kWideningColumns)[4] = kColumns;
    static constexpr int kKeysOfFour = 4;
    static constexpr int kWideningKeysOfFour = 4;
    static constexpr int kMaxRows = 12;
    static constexpr int kMaxPairedRows = 12;
    static constexpr int kMaxWideRows = 12;
    static constexpr bool kWidensFirst = false;
    static constexpr bool kFastQuanta = true;

    using F = __m512;
    using Q = __m512i;

    static F splat(float x) { return _mm512_set1_ps(x); }
    static F zero() { return _mm512_setzero_ps(); }

    static F load(const float* p) { return _mm512_loadu_ps(p); }
    static F load(const Half* p) { return _mm512_cvtph_ps(load_16_bits(p)); }
    static F load(const BFloat16* p) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_16_bits(p)), 16));
    }
    static F load(const std::int8_t* p) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
    }
    static F load_even(const BFloat16* p) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
    }
    static F load_odd(const BFloat16* p) {
        return _mm512_castsi512_ps(_mm512_and_si512(
            _mm512_loadu_si512(p), _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
    }
    static F hold(F v) { return v; }
    static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
    static void store(Half* p, F v) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_half(v));
    }
    static void store(BFloat16* p, F v) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bfloat16(v));
    }

    // The lower eight lanes only; head sizes are multiples of eight. A load fills the others with
    // zeros.
    static F load_half(const float* p) { return _mm512_maskz_loadu_ps(kLowerHalf, p); }
    static F load_half(const Half* p) {
        return _mm512_cvtph_ps(
            _mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
    }
    static F load_half(const BFloat16* p) {
        const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_zextsi128_si256(bits)), 16));
    }
    static void store_half(float* p, F v) { _mm512_mask_storeu_ps(p, kLowerHalf, v); }

    static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
    static F add(F a, F b) { return _mm512_add_ps(a, b); }
    static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
    static F div(F a, F b) { return _mm512_div_ps(a, b); }
    static F max(F a, F b) { return _mm512_max_ps(a, b); }
    static F min(F a, F b) { return _mm512_min_ps(a, b); }
    static F last_bits_as_exponent(F v) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(v), 23));
    }

    static Q load_quanta(const std::int16_t* p) { return _mm512_loadu_si512(p); }
    static Q load_quanta(const std::int8_t* p) {
        const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        const __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16));
        return _mm512_cvtepi8_epi16(
            _mm256_set_m128i(_mm_unpackhi_epi8(first, second), _mm_unpacklo_epi8(first, second)));
    }
    static Q splat_quanta(const std::int16_t* p) {
        int pair;
        std::memcpy(&pair, p, sizeof pair);
        return _mm512_set1_epi32(pair);
    }
    static Q zero_quanta() { return _mm512_setzero_si512(); }
    static Q dot_quanta(Q a, Q b, Q sum) { return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b)); }
    static void finish_here(F&) {}
    static void finish_here(Q& v) { asm volatile("" : "+v"(v)); }
    static F widen_quanta(Q v) { return _mm512_cvtepi32_ps(v); }
    static void store_quanta(std::int16_t* p, Q v) { _mm512_storeu_si512(p, v); }
    static void store_quanta(std::int16_t* p, F v) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                            _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(v)));
    }

    template <int kDistance>
    static F swap(F v) {
        if constexpr (kDistance == 8) return _mm512_shuffle_f32x4(v, v, 0x4e);
        if constexpr (kDistance == 4) return _mm512_shuffle_f32x4(v, v, 0xb1);
        if constexpr (kDistance == 2) return _mm512_shuffle_ps(v, v, 0x4e);
        if constexpr (kDistance == 1) return _mm512_shuffle_ps(v, v, 0xb1);
    }

    static F sum_each(const F (&v)[kLanes]) {
        const F ab =
            add_quarters(sum_four(v[0], v[1], v[2], v[3]), sum_four(v[4], v[5], v[6], v[7]));
        const F cd =
            add_quarters(sum_four(v[8], v[9], v[10], v[11]), sum_four(v[12], v[13], v[14], v[15]));
        return add_quarters(ab, cd);
    }

    static void store_sums(float* p, const F* v) {
        const F quarters = sum_four(v[0], v[1], v[2], v[3]);
        const __m256 halves =
            _mm256_add_ps(_mm512_castps512_ps256(quarters), _mm512_extractf32x8_ps(quarters, 1));
        _mm_storeu_ps(p,
                      _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1)));
    }

  private:
    static constexpr __mmask16 kLowerHalf = 0x00ff;

    template <class T>
    static __m256i load_16_bits(const T* p) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    }
    static __m256i to_half(F v) {
        return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    // To nearest, ties to even. Not a number stays so.
    static __m256i to_bfloat16(F v) {
        const __m512i bits = _mm512_castps_si512(v);
        const __m512i lowest = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        const __m512i half = _mm512_add_epi32(lowest, _mm512_set1_epi32(0x7fff));
        const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
        const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        return _mm512_cvtepi32_epi16(
            _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc0)));
    }
    static F sum_two(F a, F b) { return add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)); }
    // In each quarter: the sums over that quarter of a, b, c and d.
    static F sum_four(F a, F b, F c, F d) {
        const __m512d ab = _mm512_castps_pd(sum_two(a, b));
        const __m512d cd = _mm512_castps_pd(sum_two(c, d));
        return add(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)),
                   _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
    }
    // Adds neighbouring quarters: (a0+a1, a2+a3, b0+b1, b2+b3).
    static F add_quarters(F a, F b) {
        return add(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    }
};

}  // namespace
}  // namespace dualpace
