// Maps an instruction set to its kernels. Adding a level is one entry in each table here.
#include <algorithm>
#include <atomic>
#include <iterator>
#include <stdexcept>
#include <string>

#include "dualpace/isa.h"
#include "dualpace/span_kernels.h"

namespace dualpace {
namespace {

struct Level {
    Isa isa;
    std::string_view name;
};

constexpr Level kLevels[] = {
    {Isa::kGeneric, "generic"}, {Isa::kAvx2, "avx2"}, {Isa::kAvx512, "avx512"}};

std::atomic<std::optional<Isa>> current_cap{std::nullopt};

std::string names_of(const std::vector<Isa>& isas) {
    std::string names;
    for (const Isa isa : isas) names += (names.empty() ? "" : ", ") + std::string(isa_name(isa));
    return names;
}

// Neither changes while a process runs, and asking costs a trap on virtual machines.
const std::vector<Isa>& available() {
    static const std::vector<Isa> isas = [] {
        std::vector<Isa> found = compiled_isas();
        std::erase_if(found, [](Isa isa) { return !detail::host_supports(isa); });
        return found;
    }();
    return isas;
}

}  // namespace

std::string_view isa_name(Isa isa) { return kLevels[static_cast<std::size_t>(isa)].name; }

Isa parse_isa(std::string_view name) {
    std::vector<Isa> known;
    for (const Level& level : kLevels) {
        if (level.name == name) return level.isa;
        known.push_back(level.isa);
    }
    throw std::invalid_argument("isa: '" + std::string(name) + "' is not one of " +
                                names_of(known));
}

std::vector<Isa> compiled_isas() {
#if defined(DUALPACE_X86)
    return {Isa::kGeneric, Isa::kAvx2, Isa::kAvx512};
#else
    return {Isa::kGeneric};
#endif
}

std::vector<Isa> available_isas() { return available(); }

void set_max_isa(std::optional<Isa> cap) { current_cap = cap; }

std::optional<Isa> max_isa() { return current_cap; }

Isa dispatched_isa() {
    const std::optional<Isa> cap = max_isa();
    Isa best = Isa::kGeneric;
    for (const Isa isa : available()) {
        if (!cap || isa <= *cap) best = isa;
    }
    return best;
}

Isa resolve_isa(std::optional<Isa> requested) {
    if (!requested) return dispatched_isa();
    const std::vector<Isa>& isas = available();
    if (std::find(isas.begin(), isas.end(), *requested) == isas.end()) {
        throw std::invalid_argument("isa: '" + std::string(isa_name(*requested)) +
                                    "' is not available here; available: " + names_of(isas));
    }
    return *requested;
}

const SpanKernels& span_kernels(Isa isa) {
    switch (isa) {
#if defined(DUALPACE_X86)
        case Isa::kAvx2: return kSpanKernelsAvx2;
        case Isa::kAvx512: return kSpanKernelsAvx512;
#endif
        default: return kSpanKernelsGeneric;
    }
}

}  // namespace dualpace
