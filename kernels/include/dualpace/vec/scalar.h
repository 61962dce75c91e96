// IEEE 754 conversions of single elements, in plain arithmetic.
#pragma once

#include <cstdint>
#include <cstring>

#include "dualpace/element.h"

namespace dualpace {
namespace {

inline float widen(float x) { return x; }

inline float widen(Half h) {
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

inline float widen(BFloat16 b) {
    const std::uint32_t bits = std::uint32_t{b.bits} << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// To nearest, ties to even; not a number stays so.
inline Half to_half(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    std::uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        // A quiet NaN with what fits of the payload, as the hardware does it.
        return {static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu))};
    }
    if (magnitude >= 0x47800000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};
    if (magnitude < 0x38800000u) {
        // Adding 1/2 leaves the subnormal's bits at the end of the mantissa, rounded.
        float shifted;
        std::memcpy(&shifted, &magnitude, sizeof shifted);
        shifted += 0.5f;
        std::memcpy(&magnitude, &shifted, sizeof magnitude);
        return {static_cast<std::uint16_t>(sign | (magnitude - 0x3f000000u))};
    }
    magnitude += 0xfffu + ((magnitude >> 13) & 1u);
    return {static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u) >> 13))};
}

inline BFloat16 to_bfloat16(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fc0u};
    return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

}  // namespace
}  // namespace dualpace
