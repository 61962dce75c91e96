// What the processor offers (cpuid) and the operating system saves on a context switch (xgetbv).
// Both are needed: a kernel may have disabled AVX state although the processor has the
// instructions.
#include "dualpace/isa.h"
#include "dualpace/tile_permission.h"

#if defined(DUALPACE_X86)
#include <cpuid.h>

#include <cstdint>
#endif

namespace dualpace::detail {

#if defined(DUALPACE_X86)
namespace {

struct Leaf {
    std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf cpuid(std::uint32_t leaf, std::uint32_t subleaf = 0) {
    Leaf r;
    if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
    return r;
}

bool has_all(std::uint64_t bits, std::uint64_t wanted) { return (bits & wanted) == wanted; }

constexpr std::uint32_t bit(int n) { return std::uint32_t{1} << n; }

// XCR0, the register state that the operating system saves. Needs OSXSAVE.
std::uint64_t saved_state() {
    std::uint32_t low = 0;
    std::uint32_t high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (std::uint64_t{high} << 32) | low;
}

// Bit numbers: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2A, CPUID, and
// volume 1, 13.3.
constexpr std::uint32_t kLeaf1Ecx =
    bit(12) | bit(27) | bit(28) | bit(29);  // FMA, OSXSAVE, AVX, F16C
constexpr std::uint32_t kLeaf7Avx2 = bit(5);
constexpr std::uint32_t kLeaf7Avx512 = bit(16) | bit(17) | bit(30) | bit(31);  // F, DQ, BW, VL
constexpr std::uint32_t kLeaf7EcxAvx512Vnni = bit(11);
constexpr std::uint32_t kLeaf7Sub1Avx512Bf16 = bit(5);
constexpr std::uint32_t kLeaf7EdxTiles = bit(22) | bit(24);  // AMX-BF16, AMX-TILE
constexpr std::uint64_t kAvxState = bit(1) | bit(2);         // SSE, upper halves of YMM
constexpr std::uint64_t kAvx512State = kAvxState | bit(5) | bit(6) | bit(7);  // masks, ZMM
constexpr std::uint64_t kTileState = bit(17) | bit(18);                       // XTILECFG, XTILEDATA

}  // namespace

HostTiles host_tiles() {
    if (!has_all(cpuid(1).ecx, kLeaf1Ecx)) return {false, false};
    return {has_all(cpuid(7).edx, kLeaf7EdxTiles), has_all(saved_state(), kTileState)};
}

bool host_supports(Isa isa) {
    if (isa == Isa::kGeneric) return true;
    if (!has_all(cpuid(1).ecx, kLeaf1Ecx)) return false;
    const Leaf seven = cpuid(7);
    const std::uint64_t saved = saved_state();
    const bool avx2 = has_all(saved, kAvxState) && has_all(seven.ebx, kLeaf7Avx2);
    if (isa == Isa::kAvx2) return avx2;
    const bool avx512 = avx2 && has_all(saved, kAvx512State) && has_all(seven.ebx, kLeaf7Avx512);
    if (isa == Isa::kAvx512) return avx512;
    const bool whole = avx512 && has_all(seven.ecx, kLeaf7EcxAvx512Vnni);
    if (isa == Isa::kAvx512Vnni) return whole;
    const bool bfloat16 = whole && has_all(cpuid(7, 1).eax, kLeaf7Sub1Avx512Bf16);
    if (isa == Isa::kAvx512Bf16) return bfloat16;
    return bfloat16 && host_tiles().present && tile_refusal().empty();
}
#else
HostTiles host_tiles() { return {false, false}; }

bool host_supports(Isa isa) { return isa == Isa::kGeneric; }
#endif

}  // namespace dualpace::detail
