// Eight floats in the compiler's own vector type: any processor.
//
// Everything under vec/ and in span_template.h is in an unnamed namespace on purpose. Each
// including file is compiled with other machine flags, and a function with external linkage could
// be merged by the linker into a copy that this machine cannot run.
#pragma once

#include <cstdint>
#include <cstring>

#include "dualpace/element.h"

namespace dualpace {
namespace {

struct Generic {
    static constexpr int kLanes = 8;
    // How many columns of values each pass keeps in registers, by number of query heads (1 to 4).
    static constexpr int kColumns[4] = {4, 2, 2, 1};

    typedef float F __attribute__((vector_size(32)));
    typedef std::int32_t I __attribute__((vector_size(32)));
    typedef std::uint32_t U __attribute__((vector_size(32)));

    static F splat(float x) { return F{x, x, x, x, x, x, x, x}; }
    static F zero() { return splat(0.0f); }

    static F load(const float* p) {
        F v;
        std::memcpy(&v, p, sizeof v);
        return v;
    }
    static F load(const Half* p) {
        F v;
        for (int i = 0; i < kLanes; ++i) v[i] = widen(p[i]);
        return v;
    }
    static F load(const BFloat16* p) {
        U u;
        for (int i = 0; i < kLanes; ++i) u[i] = std::uint32_t{p[i].bits} << 16;
        return (F)u;
    }
    static void store(float* p, F v) { std::memcpy(p, &v, sizeof v); }

    static F fma(F a, F b, F c) { return a * b + c; }
    static F add(F a, F b) { return a + b; }
    static F sub(F a, F b) { return a - b; }
    static F mul(F a, F b) { return a * b; }
    static F div(F a, F b) { return a / b; }
    // b where the two are unordered.
    static F max(F a, F b) { return a > b ? a : b; }
    static F round(F x) {
        // Adding 1.5 * 2^23 leaves no fraction bits; right for |x| < 2^22.
        const F magic = splat(12582912.0f);
        return (x + magic) - magic;
    }
    // 2^n for whole n in [-126, 127]; 0 for n = -127.
    static F pow2(F n) {
        const I exponent = __builtin_convertvector(n, I) + 127;
        return (F)(exponent << 23);
    }

    template <int kDistance>
    static F swap(F v) {
        F w;
        for (int i = 0; i < kLanes; ++i) w[i] = v[i ^ kDistance];
        return w;
    }

    // Lane i of the result is the sum over all lanes of v[i].
    static F sum_each(const F (&v)[kLanes]) {
        F sums;
        for (int i = 0; i < kLanes; ++i) {
            const F& x = v[i];
            sums[i] = ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
        }
        return sums;
    }

  private:
    static float widen(Half h) {
        const std::uint32_t sign = std::uint32_t{h.bits & 0x8000u} << 16;
        const std::uint32_t magnitude = std::uint32_t{h.bits & 0x7fffu} << 13;
        // The exponent is 112 too small; the multiplication puts that right for subnormals as well.
        std::uint32_t bits = magnitude >= (31u << 23) ? magnitude | 0x7f800000u : magnitude;
        float value;
        std::memcpy(&value, &bits, sizeof value);
        if (magnitude < (31u << 23)) value *= 0x1p112f;
        std::memcpy(&bits, &value, sizeof bits);
        bits |= sign;
        std::memcpy(&value, &bits, sizeof value);
        return value;
    }
};

using Vec = Generic;

}  // namespace
}  // namespace dualpace
