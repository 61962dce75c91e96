// 2^x for softmax weights and activations, written once over any vector type. Include after one of
// the vector headers.
#pragma once

namespace dualpace {
namespace {

// 2^x for x from -127.5 to 126.5. Its relative error is under 1.2e-7: x splits into a whole number
// and f in [-1/2, 1/2], and 2^f is the polynomial of degree 6 with the least largest relative error
// (2.6e-9 before rounding; found by Remez exchange with p(0) = 1 held). 0 below -126.5.
template <class V>
inline typename V::F exp2_in_range(typename V::F x) {
    using F = typename V::F;
    // Added to a number of this size, x loses its fraction, and the sum's last bits are a whole
    // number: the exponent of 2^whole, biased.
    const F large = V::splat(0x1.8p23f + 127.0f);
    const F shifted = V::add(x, large);
    const F f = V::sub(x, V::sub(shifted, large));
    F p = V::splat(0x1.470b4ap-13f);
    p = V::fma(p, f, V::splat(0x1.5f7276p-10f));
    p = V::fma(p, f, V::splat(0x1.3b270ep-7f));
    p = V::fma(p, f, V::splat(0x1.c6ae72p-5f));
    p = V::fma(p, f, V::splat(0x1.ebfbe2p-3f));
    p = V::fma(p, f, V::splat(0x1.62e432p-1f));
    p = V::fma(p, f, V::splat(1.0f));
    return V::mul(p, V::last_bits_as_exponent(shifted));
}

// 2^x for x <= 0; exactly 1 at 0, exactly 0 below -126.5, not a number where x is not one.
template <class V>
inline typename V::F exp2_nonpositive(typename V::F x) {
    return exp2_in_range<V>(V::max(V::splat(-127.0f), x));
}

// 2^x where that is a number of fp32, the nearest end of the range elsewhere; not a number where x
// is not one.
template <class V>
inline typename V::F exp2_clamped(typename V::F x) {
    return exp2_in_range<V>(V::min(V::splat(126.0f), V::max(V::splat(-127.0f), x)));
}

}  // namespace
}  // namespace dualpace
