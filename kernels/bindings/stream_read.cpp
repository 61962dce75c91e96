#include <nanobind/nanobind.h>

#include "array_view.h"
#include "bindings.h"
#include "dualpace/stream_read.h"
#include "dualpace/threads.h"

namespace nb = nanobind;

namespace dualpace {
namespace {

std::uint64_t read(nb::handle words, std::int64_t num_threads) {
    const ArrayView array("words", words, Access::kRead);
    array.require_rank({"count"});
    const std::uint64_t* data = array.int64s();
    check_num_threads(num_threads);
    const nb::gil_scoped_release release;
    return stream_read(data, array.size(0), static_cast<int>(num_threads));
}

}  // namespace

void bind_stream_read(nb::module_& module) {
    module.def("stream_read", &read, nb::arg("words").none(), nb::kw_only(), nb::arg("num_threads"),
               nb::sig("def stream_read(words: object, *, num_threads: int) -> int"),
               "See dualpace.kernels.stream_read.");
}

}  // namespace dualpace
