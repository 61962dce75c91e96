// Tiles in plain arithmetic, for tests on any machine: the same results as the processor's, to the
// last bit, but for which of several NaNs comes out.
//
// A fused operation is done in fp64: the product of two bfloat16 has 16 bits, so it is exact, and a
// sum of it and an fp32 number that is rounded to 53 bits and then to 24 is the sum rounded to 24
// (53 >= 2 * 24 + 2; Figueroa, When is double rounding innocuous?, 1995).
#pragma once

#include <cstdint>
#include <cstring>

#include "dualpace/tile/layout.h"
#include "dualpace/vec/scalar.h"

namespace dualpace {
namespace {

// fp32 to nearest, with zero for what would be subnormal after rounding to 24 bits.
inline float round_flushed(double x) {
    constexpr double kLeast = 0x1p-126 - 0x1p-151;
    const double size = x < 0 ? -x : x;
    return size < kLeast ? 0.0f : static_cast<float>(x);
}

inline double widen_flushed(float x) {
    const float size = x < 0 ? -x : x;
    return size < 0x1p-126f ? 0.0 : static_cast<double>(x);
}

class PortableTiles {
  public:
    PortableTiles() = default;
    PortableTiles(const PortableTiles&) = delete;
    PortableTiles& operator=(const PortableTiles&) = delete;

    void configure(const TileLayout& layout) {
        layout_ = layout;
        std::memset(tiles_, 0, sizeof tiles_);
    }
    template <int kTile>
    void zero() {
        std::memset(tiles_[kTile], 0, sizeof tiles_[kTile]);
    }
    template <int kTile>
    void load(const void* from, std::int64_t stride) {
        zero<kTile>();
        for (int row = 0; row < layout_.rows[kTile]; ++row) {
            std::memcpy(tiles_[kTile][row], static_cast<const char*>(from) + row * stride,
                        layout_.row_bytes[kTile]);
        }
    }
    template <int kTile>
    void store(void* to, std::int64_t stride) {
        for (int row = 0; row < layout_.rows[kTile]; ++row) {
            std::memcpy(static_cast<char*>(to) + row * stride, tiles_[kTile][row],
                        layout_.row_bytes[kTile]);
        }
    }
    template <int kC, int kA, int kB>
    void dot() {
        const int pairs = layout_.row_bytes[kA] / 4;
        check(layout_.rows[kC] == layout_.rows[kA] && layout_.rows[kB] == pairs &&
              layout_.row_bytes[kC] == layout_.row_bytes[kB]);
        double b[kTileRows][kTileBFloats];
        for (int k = 0; k < pairs; ++k) widen_row(tiles_[kB][k], b[k]);
        for (int row = 0; row < layout_.rows[kC]; ++row)
            dot_row(tiles_[kA][row], b, pairs, row, kC);
    }

  private:
    using Row = char[kTileRowBytes];

    // The processor faults where shapes do not agree.
    static void check(bool shapes_agree) {
        if (!shapes_agree) __builtin_trap();
    }
    static void widen_row(const Row& row, double (&to)[kTileBFloats]) {
        BFloat16 elements[kTileBFloats];
        std::memcpy(elements, row, sizeof elements);
        for (int i = 0; i < kTileBFloats; ++i) to[i] = widen_flushed(widen(elements[i]));
    }
    void dot_row(const Row& a_row, const double (&b)[kTileRows][kTileBFloats], int pairs, int row,
                 int c) {
        double a[kTileBFloats];
        widen_row(a_row, a);
        // The sums of first elements and those of second ones, side by side.
        float sums[kTileBFloats] = {};
        for (int k = 0; k < pairs; ++k) {
            for (int i = 0; i < kTileBFloats; ++i)
                sums[i] = round_flushed(a[2 * k + i % 2] * b[k][i] + static_cast<double>(sums[i]));
        }
        float totals[kTileFloats];
        std::memcpy(totals, tiles_[c][row], sizeof totals);
        for (int n = 0; n < kTileFloats; ++n) {
            const float both = round_flushed(static_cast<double>(sums[2 * n]) +
                                             static_cast<double>(sums[2 * n + 1]));
            totals[n] = round_flushed(widen_flushed(totals[n]) + static_cast<double>(both));
        }
        std::memcpy(tiles_[c][row], totals, layout_.row_bytes[c]);
    }

    TileLayout layout_;
    alignas(64) Row tiles_[kTiles][kTileRows] = {};
};

}  // namespace
}  // namespace dualpace
