// Maps an instruction set to its kernels. Adding a level is one entry in each table here.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <stdexcept>
#include <string>

#include "dualpace/dense_kernels.h"
#include "dualpace/isa.h"
#include "dualpace/span_kernels.h"
#include "dualpace/tile_kernels.h"

namespace dualpace {
namespace {

// Another level's kernels, with tiles for bfloat16.
DenseKernels with_tiles(DenseKernels kernels, const TileKernels& tiles) {
    kernels.rounded_product = tiles.rounded_product;
    kernels.rounded_peak = tiles.rounded_peak;
    return kernels;
}

SpanKernels with_tiles(SpanKernels kernels, const TileKernels& tiles) {
    kernels.pack_rounded_query = tiles.pack_rounded_query;
    kernels.attend_rounded = tiles.attend_rounded;
    return kernels;
}

const DenseKernels kDensePortableAmx = with_tiles(kDenseKernelsPortable512, kTileKernelsPortable);
const SpanKernels kSpanPortableAmx = with_tiles(kSpanKernelsPortable512, kTileKernelsPortable);
#if defined(DUALPACE_X86)
const DenseKernels kDenseAmx = with_tiles(kDenseKernelsAvx512Bf16, kTileKernelsAmx);
const SpanKernels kSpanAmx = with_tiles(kSpanKernelsAvx512, kTileKernelsAmx);
#endif

struct Level {
    Isa isa;
    std::string_view name;
    const SpanKernels* span;
    const DenseKernels* dense;
};

// Every level that this library was compiled for, rising.
constexpr Level kLevels[] = {
    {Isa::kGeneric, "generic", &kSpanKernelsGeneric, &kDenseKernelsGeneric},
#if defined(DUALPACE_X86)
    {Isa::kAvx2, "avx2", &kSpanKernelsAvx2, &kDenseKernelsAvx2},
    {Isa::kAvx512, "avx512", &kSpanKernelsAvx512, &kDenseKernelsAvx512},
    {Isa::kAvx512Vnni, "avx512vnni", &kSpanKernelsAvx512, &kDenseKernelsAvx512Vnni},
    {Isa::kAvx512Bf16, "avx512bf16", &kSpanKernelsAvx512, &kDenseKernelsAvx512Bf16},
    {Isa::kAmxBf16, "amxbf16", &kSpanAmx, &kDenseAmx},
#endif
};

constexpr Level kTwins[] = {
    {Isa::kPortable512, "portable-avx512", &kSpanKernelsPortable512, &kDenseKernelsPortable512},
    {Isa::kPortableBf16, "portable-avx512bf16", &kSpanKernelsPortable512,
     &kDenseKernelsPortableBf16},
    {Isa::kPortableAmx, "portable-amxbf16", &kSpanPortableAmx, &kDensePortableAmx},
};

const Level* find(Isa isa) {
    for (const Level& level : kLevels) {
        if (level.isa == isa) return &level;
    }
    for (const Level& twin : kTwins) {
        if (twin.isa == isa) return &twin;
    }
    return nullptr;
}

bool is_twin(Isa isa) {
    return std::any_of(std::begin(kTwins), std::end(kTwins),
                       [isa](const Level& twin) { return twin.isa == isa; });
}

std::atomic<std::optional<Isa>> current_cap{std::nullopt};

std::string names_of(const std::vector<Isa>& isas) {
    std::string names;
    for (const Isa isa : isas) names += (names.empty() ? "" : ", ") + std::string(isa_name(isa));
    return names;
}

// Neither changes while a process runs, and asking costs a trap on virtual machines.
std::vector<Isa>& available() {
    static std::vector<Isa> isas = [] {
        std::vector<Isa> found = compiled_isas();
        std::erase_if(found, [](Isa isa) { return !detail::host_supports(isa); });
        return found;
    }();
    return isas;
}

// The highest available level within the cap.
Isa highest_isa() {
    const std::optional<Isa> cap = max_isa();
    Isa best = Isa::kGeneric;
    for (const Isa isa : available()) {
        if (!cap || isa <= *cap) best = isa;
    }
    return best;
}

using Peak = std::int64_t (*)(std::int64_t steps, float* kept);

double operations_per_s(Peak peak) {
    constexpr std::int64_t kSteps = 20000;
    float kept = 0.0f;
    const auto start = std::chrono::steady_clock::now();
    const std::int64_t operations = peak(kSteps, &kept);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    // Looks at the result, so that it must be computed.
    return kept == -1.0f ? 0.0 : static_cast<double>(operations) / seconds.count();
}

// Whether a level's bfloat16 arithmetic is so much slower than whole numbers, which are closer,
// that those are to be used. Processors run it at the rate of whole numbers, or at a quarter of it:
// what is measured leaves no doubt. Measured once. Tiles are faster than either.
bool slow_bfloat16(Isa isa) {
#if defined(DUALPACE_X86)
    if (isa != Isa::kAvx512Bf16) return false;
    static const bool slow = [] {
        constexpr double kClearly = 1.5;
        double pairs = 0.0;
        double quanta = 0.0;
        for (int round = 0; round < 5; ++round) {
            pairs = std::max(pairs, operations_per_s(kDenseKernelsAvx512Bf16.rounded_peak));
            quanta = std::max(quanta, operations_per_s(kDenseKernelsAvx512Bf16.quantised_peak));
        }
        return quanta > kClearly * pairs;
    }();
    return slow;
#else
    static_cast<void>(isa);
    return false;
#endif
}

}  // namespace

std::string_view isa_name(Isa isa) { return find(isa)->name; }

Isa parse_isa(std::string_view name) {
    std::vector<Isa> known;
    for (const Level& level : kLevels) {
        if (level.name == name) return level.isa;
        known.push_back(level.isa);
    }
    for (const Level& twin : kTwins) {
        if (twin.name == name) return twin.isa;
    }
    throw std::invalid_argument("isa: '" + std::string(name) + "' is not one of " +
                                names_of(known));
}

std::vector<Isa> compiled_isas() {
    std::vector<Isa> isas;
    for (const Level& level : kLevels) isas.push_back(level.isa);
    return isas;
}

std::vector<Isa> portable_twins() {
    std::vector<Isa> isas;
    for (const Level& twin : kTwins) isas.push_back(twin.isa);
    return isas;
}

std::vector<Isa> available_isas() { return available(); }

void assume_available(Isa isa) {
    std::vector<Isa>& isas = available();
    if (is_twin(isa) || std::find(isas.begin(), isas.end(), isa) != isas.end()) return;
    isas.insert(std::upper_bound(isas.begin(), isas.end(), isa), isa);
}

void set_max_isa(std::optional<Isa> cap) {
    if (cap && is_twin(*cap)) {
        throw std::invalid_argument("isa: '" + std::string(isa_name(*cap)) +
                                    "' is for tests; it is not one of " +
                                    names_of(compiled_isas()));
    }
    current_cap = cap;
}

std::optional<Isa> max_isa() { return current_cap; }

Isa dispatched_isa() {
    const Isa best = highest_isa();
    return slow_bfloat16(best) ? Isa::kAvx512Vnni : best;
}

std::optional<Isa> passed_over_isa() {
    const Isa best = highest_isa();
    return slow_bfloat16(best) ? std::optional(best) : std::nullopt;
}

Isa resolve_isa(std::optional<Isa> requested) {
    if (!requested) return dispatched_isa();
    if (is_twin(*requested)) return *requested;
    const std::vector<Isa>& isas = available();
    if (std::find(isas.begin(), isas.end(), *requested) == isas.end()) {
        throw std::invalid_argument("isa: '" + std::string(isa_name(*requested)) +
                                    "' is not available here; available: " + names_of(isas));
    }
    return *requested;
}

const SpanKernels& span_kernels(Isa isa) { return *find(isa)->span; }

const DenseKernels& dense_kernels(Isa isa) { return *find(isa)->dense; }

}  // namespace dualpace
