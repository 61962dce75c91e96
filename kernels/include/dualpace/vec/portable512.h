// Sixteen floats in the compiler's own vector type: the portable twin of the AVX-512 path. It lets
// tests run that path's logic on any machine.
#pragma once

#include "dualpace/vec/portable.h"

namespace dualpace {
namespace {

struct Portable512 : Portable<16> {
    static constexpr int kColumns[4] = {8, 8, 4, 4};
    static constexpr const int (&kWideningColumns)[4] = kColumns;
    static constexpr int kKeysOfFour = 4;
    static constexpr int kWideningKeysOfFour = 4;
    static constexpr int kMaxRows = 12;
    static constexpr int kMaxPairedRows = 12;
    static constexpr int kMaxWideRows = 12;
    static constexpr bool kWidensFirst = false;
    static constexpr bool kFastQuanta = true;
};

}  // namespace
}  // namespace dualpace
