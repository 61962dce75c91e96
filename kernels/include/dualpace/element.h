// Element types that a KV cache may hold. Arithmetic is always fp32; these are storage formats
// only.
#pragma once

#include <cstdint>

namespace dualpace {

// IEEE 754 binary16, as stored.
struct Half {
    std::uint16_t bits;
};

// bfloat16: the upper half of a binary32, as stored.
struct BFloat16 {
    std::uint16_t bits;
};

enum class ElementType { kFloat32, kFloat16, kBFloat16 };

}  // namespace dualpace
