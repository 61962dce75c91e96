// Tiles of the processor: AMX-TILE and AMX-BF16.
//
// Written as assembly because the compilers' own functions take the number of a tile as a literal
// only, and GCC's do not say that they read and write memory. Nothing else in the process uses
// tiles, so none are declared as changed.
#pragma once

#include <cstdint>

#include "dualpace/tile/layout.h"

namespace dualpace {
namespace {

class AmxTiles {
  public:
    AmxTiles() = default;
    AmxTiles(const AmxTiles&) = delete;
    AmxTiles& operator=(const AmxTiles&) = delete;
    ~AmxTiles() { __asm__ volatile("tilerelease"); }

    void configure(const TileLayout& layout) { __asm__ volatile("ldtilecfg %0" : : "m"(layout)); }
    template <int kTile>
    void zero() {
        __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
    }
    template <int kTile>
    void load(const void* from, std::int64_t stride) {
        __asm__ volatile("tileloadd (%1,%2,1), %%tmm%c0"
                         :
                         : "i"(kTile), "r"(from), "r"(stride)
                         : "memory");
    }
    template <int kTile>
    void store(void* to, std::int64_t stride) {
        __asm__ volatile("tilestored %%tmm%c0, (%1,%2,1)"
                         :
                         : "i"(kTile), "r"(to), "r"(stride)
                         : "memory");
    }
    template <int kC, int kA, int kB>
    void dot() {
        __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
    }
};

}  // namespace
}  // namespace dualpace
