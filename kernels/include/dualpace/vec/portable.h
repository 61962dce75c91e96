// Vectors of any number of floats in the compiler's own vector type: any processor.
//
// Everything under vec/, span/, dense/ and in span_template.h is in an unnamed namespace on
// purpose. Each including file is compiled with other machine flags, and a function with external
// linkage could be merged by the linker into a copy that this machine cannot run.
#pragma once

#include <cstdint>
#include <cstring>

#include "dualpace/vec/scalar.h"

namespace dualpace {
namespace {

template <int kWidth>
struct PortableVectors;

// The vector types of GCC and Clang want their size as a literal in a plain typedef.
template <>
struct PortableVectors<8> {
    typedef float F __attribute__((vector_size(32)));
    typedef std::int32_t I __attribute__((vector_size(32)));
    typedef std::uint32_t U __attribute__((vector_size(32)));
};

template <>
struct PortableVectors<16> {
    typedef float F __attribute__((vector_size(64)));
    typedef std::int32_t I __attribute__((vector_size(64)));
    typedef std::uint32_t U __attribute__((vector_size(64)));
};

template <int kWidth>
struct Portable {
    static constexpr int kLanes = kWidth;

    using F = typename PortableVectors<kWidth>::F;
    using I = typename PortableVectors<kWidth>::I;
    using U = typename PortableVectors<kWidth>::U;
    // Pairs of whole numbers of 16 bits, or whole numbers of 32 bits.
    using Q = I;

    static F splat(float x) { return F{} + x; }
    static F zero() { return F{}; }

    static F load(const float* p) {
        F v;
        std::memcpy(&v, p, sizeof v);
        return v;
    }
    static F load(const Half* p) {
        return collect([p](int i) { return widen(p[i]); });
    }
    static F load(const BFloat16* p) {
        return collect([p](int i) { return widen(p[i]); });
    }
    static F load(const std::int8_t* p) {
        return collect([p](int i) { return static_cast<float>(p[i]); });
    }
    // The first or the second of each two neighbours, of 2 * kLanes elements.
    static F load_even(const BFloat16* p) {
        return collect([p](int i) { return widen(p[2 * i]); });
    }
    static F load_odd(const BFloat16* p) {
        return collect([p](int i) { return widen(p[2 * i + 1]); });
    }

    // The same, in a register from here on: compilers rather load a vector again for each use, and
    // loads are what attention has least of to spare.
    static F hold(F v) { return v; }
    static void store(float* p, F v) { std::memcpy(p, &v, sizeof v); }
    static void store(Half* p, F v) {
        narrow<kWidth>(v, [p](int i, float x) { p[i] = to_half(x); });
    }
    static void store(BFloat16* p, F v) {
        narrow<kWidth>(v, [p](int i, float x) { p[i] = to_bfloat16(x); });
    }

    // The first eight lanes only, where a vector has more; the others are zeros.
    template <class T>
    static F load_half(const T* p) {
        T whole[kWidth] = {};
        std::memcpy(whole, p, sizeof whole / 2);
        return load(whole);
    }
    template <class T>
    static void store_half(T* p, F v) {
        T whole[kWidth];
        store(whole, v);
        std::memcpy(p, whole, sizeof whole / 2);
    }

    static F fma(F a, F b, F c) { return a * b + c; }
    static F add(F a, F b) { return a + b; }
    static F sub(F a, F b) { return a - b; }
    static F mul(F a, F b) { return a * b; }
    static F div(F a, F b) { return a / b; }
    // b where the two are unordered.
    static F max(F a, F b) { return a > b ? a : b; }
    static F min(F a, F b) { return a < b ? a : b; }
    // Each lane's last eight bits in the place of a number's exponent; the ninth must be zero.
    static F last_bits_as_exponent(F v) { return (F)((I)v << 23); }

    // Each lane holds two neighbours, of 2 * kLanes numbers.
    static Q load_quanta(const std::int16_t* p) {
        Q v;
        std::memcpy(&v, p, sizeof v);
        return v;
    }
    // From one row of sixteen and from the next.
    static Q load_quanta(const std::int8_t* p) {
        std::int16_t pairs[2 * kWidth];
        for (int i = 0; i < 2 * kWidth; ++i) pairs[i] = p[i % 2 * 16 + i / 2];
        return load_quanta(pairs);
    }
    static Q splat_quanta(const std::int16_t* p) {
        std::int32_t pair;
        std::memcpy(&pair, p, sizeof pair);
        return Q{} + pair;
    }
    static Q zero_quanta() { return Q{}; }
    // Adds to each lane of `sum` the products of its two pairs of neighbours.
    static Q dot_quanta(Q a, Q b, Q sum) {
        return sum + low_half(a) * low_half(b) + (a >> 16) * (b >> 16);
    }
    // Computed before what follows is: compilers would rather keep more products waiting than there
    // are registers.
    static void finish_here(F&) {}
    static void finish_here(Q&) {}
    static F widen_quanta(Q v) { return __builtin_convertvector(v, F); }
    static void store_quanta(std::int16_t* p, Q v) { std::memcpy(p, &v, sizeof v); }
    // To nearest; magnitudes up to kLargestQuantum.
    static void store_quanta(std::int16_t* p, F v) {
        // Adding 1.5 * 2^23 leaves no fraction bits; right below 2^22.
        const F large = splat(0x1.8p23f);
        const F whole = (v + large) - large;
        narrow<kWidth>(whole, [p](int i, float x) { p[i] = static_cast<std::int16_t>(x); });
    }

    template <int kDistance>
    static F swap(F v) {
        return collect([&v](int i) { return v[i ^ kDistance]; });
    }

    // Lane i of the result is the sum over all lanes of v[i].
    static F sum_each(const F (&v)[kWidth]) {
        return collect([&v](int i) {
            F x = v[i];
            for (int distance = kWidth / 2; distance > 0; distance /= 2) {
                for (int j = 0; j < distance; ++j) x[j] += x[j + distance];
            }
            return x[0];
        });
    }
    // Writes the sums of four vectors, each over all its lanes.
    static void store_sums(float* p, const F* v) {
        F all[kWidth] = {};
        for (int i = 0; i < 4; ++i) all[i] = v[i];
        const F sums = sum_each(all);
        std::memcpy(p, &sums, 4 * sizeof(float));
    }

  private:
    static Q low_half(Q v) { return (Q)((U)v << 16) >> 16; }
    template <class Lane>
    static F collect(Lane lane) {
        F v;
        for (int i = 0; i < kWidth; ++i) v[i] = lane(i);
        return v;
    }
    template <int kCount, class Put>
    static void narrow(F v, Put put) {
        for (int i = 0; i < kCount; ++i) put(i, v[i]);
    }
};

}  // namespace
}  // namespace dualpace
