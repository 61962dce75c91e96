#include "dualpace/pinning.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "dualpace/threads.h"

namespace nb = nanobind;

namespace dualpace {
namespace {

void pin(const std::vector<int>& cpus) {
    check_num_threads(static_cast<std::int64_t>(cpus.size()));
    const nb::gil_scoped_release release;
    pin_threads(cpus);
}

std::vector<std::vector<int>> affinities(std::int64_t num_threads) {
    check_num_threads(num_threads);
    const nb::gil_scoped_release release;
    return thread_affinities(static_cast<int>(num_threads));
}

}  // namespace

void bind_pinning(nb::module_& module) {
    module.def("pin_threads", &pin, nb::arg("cpus"), "See dualpace.kernels.pin_threads.");
    module.def("thread_affinities", &affinities, nb::arg("num_threads"),
               "See dualpace.kernels.thread_affinities.");
}

}  // namespace dualpace
