// Eight floats in the compiler's own vector type: the path of any processor, and the portable twin
// of the AVX2 path.
#pragma once

#include "dualpace/vec/portable.h"

namespace dualpace {
namespace {

struct Generic : Portable<8> {
    // How many columns of values each pass of attention keeps in registers, by number of query
    // heads (1 to 4).
    static constexpr int kColumns[4] = {4, 2, 2, 1};
    // The same for values that are widened, which may take a register.
    static constexpr const int (&kWideningColumns)[4] = kColumns;
    // How many keys are scored at once for four query heads; and of bfloat16, whose widening may
    // take a register.
    static constexpr int kKeysOfFour = 3;
    static constexpr int kWideningKeysOfFour = 3;
    // Most rows of a product's block, of one panel and of two; and of one whose weights are loaded
    // in pairs, which takes a register more.
    static constexpr int kMaxRows = 3;
    static constexpr int kMaxPairedRows = 3;
    static constexpr int kMaxWideRows = 1;
    // Whether weights of few bits are widened once for many blocks of rows, rather than by each as
    // it loads them: not where loads widen beside the multiply-adds.
    static constexpr bool kWidensFirst = true;
    // Whether whole numbers of 16 bits are multiplied faster than floats.
    static constexpr bool kFastQuanta = false;
};

}  // namespace
}  // namespace dualpace
