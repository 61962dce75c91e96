// The thread's floating-point mode in which subnormal numbers are zeros, as they are in tiles.
#pragma once

#if defined(DUALPACE_X86)
#include <xmmintrin.h>
#endif

namespace dualpace {
namespace {

// From construction to destruction. Only x86-64 has the mode: elsewhere subnormal numbers are kept,
// which the portable twin's vectors do as well where a product alone is one.
class FlushedSubnormals {
  public:
    FlushedSubnormals(const FlushedSubnormals&) = delete;
    FlushedSubnormals& operator=(const FlushedSubnormals&) = delete;
#if defined(DUALPACE_X86)
    FlushedSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlushToZero | kAreZeros); }
    ~FlushedSubnormals() { _mm_setcsr(before_); }

  private:
    static constexpr unsigned kFlushToZero = 1u << 15;
    static constexpr unsigned kAreZeros = 1u << 6;
    unsigned before_;
#else
    FlushedSubnormals() = default;
#endif
};

}  // namespace
}  // namespace dualpace
