// The Python module dualpace.kernels._native. Its users go through dualpace.kernels.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "dualpace/isa.h"
#include "dualpace/openmp_runtime.h"
#include "dualpace/tile_kernels.h"
#include "dualpace/tile_permission.h"

namespace nb = nanobind;

namespace dualpace {
namespace {

std::vector<std::string> names_of(const std::vector<Isa>& isas) {
    std::vector<std::string> names;
    for (const Isa isa : isas) names.emplace_back(isa_name(isa));
    return names;
}

void cap_isa(const std::optional<std::string>& name) {
    set_max_isa(name ? std::optional(parse_isa(*name)) : std::nullopt);
}

std::optional<std::string> max_isa_name() {
    const std::optional<Isa> cap = max_isa();
    return cap ? std::optional(std::string(isa_name(*cap))) : std::nullopt;
}

std::optional<std::string> passed_over_isa_name() {
    const std::optional<Isa> isa = passed_over_isa();
    return isa ? std::optional(std::string(isa_name(*isa))) : std::nullopt;
}

}  // namespace

NB_MODULE(_native, module) {
    module.doc() = "Native kernels.";
    module.def(
        "compiled_isas", [] { return names_of(compiled_isas()); },
        "Levels that were compiled, rising.");
    module.def(
        "available_isas", [] { return names_of(available_isas()); },
        "Compiled levels that this machine runs.");
    module.def(
        "portable_twins", [] { return names_of(portable_twins()); },
        "Levels' logic on any processor; for tests.");
    module.def(
        "dispatched_isa", [] { return std::string(isa_name(dispatched_isa())); },
        "The level used by default.");
    module.def("passed_over_isa", &passed_over_isa_name,
               "The level that is left out for its slow arithmetic; None: none is.");
    module.def("set_max_isa", &cap_isa, nb::arg("name").none(),
               "Cap the level used by default; None lifts the cap.");
    module.def("max_isa", &max_isa_name, "The cap; None: no cap.");
    module.def(
        "assume_available", [](const std::string& name) { assume_available(parse_isa(name)); },
        nb::arg("name"), "Count a compiled level as available: for tests under an emulator.");
    module.def("tile_refusal", &tile_refusal,
               "Why tiles that the processor has are not used; empty: no such case.");
    module.def("request_tile_permission", &request_tile_permission,
               "Ask for the process; 0 or an errno.");
    module.def("describe_tile_refusal", &describe_tile_refusal, nb::arg("saved"), nb::arg("error"),
               "The words of tile_refusal for what the operating system answers.");
    module.attr("LEAST_TILE_ROWS") = kLeastTileRows;
    module.attr("LEAST_TILE_HEADS") = kLeastTileHeads;
    module.def(
        "compiler", [] { return std::string(DUALPACE_COMPILER); },
        "Name and version of the compiler.");
    module.def("openmp_runtime", &openmp_runtime_path,
               "File of the OpenMP runtime that the kernels call.");
    module.def("openmp_max_threads", &openmp_max_threads,
               "Threads that the runtime would use by itself.");
    bind_attention_plan(module);
    bind_doorbell(module);
    bind_linear(module);
    bind_host_decoder(module);
    bind_paged_attention(module);
    bind_pinning(module);
    bind_stream_read(module);
}

}  // namespace dualpace
