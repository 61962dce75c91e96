// Packed linear maps.
#include "dualpace/linear.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include "array_view.h"
#include "bindings.h"
#include "dualpace/huge_memory.h"
#include "dualpace/threads.h"

namespace nb = nanobind;

namespace dualpace {
namespace {

MatrixSource source_of(const ArrayView& weight) {
    weight.require_rank({"outputs", "inputs"});
    return {weight.data(), weight.element_type(), weight.size(0), weight.size(1), nullptr};
}

void pack(PackedLinear* self, nb::handle weight, nb::handle bias, std::string_view format,
          std::int64_t group, std::int64_t num_threads) {
    const ArrayView weights("weight", weight, Access::kRead);
    MatrixSource source = source_of(weights);
    check_num_threads(num_threads);
    const MatrixFormat parsed = parse_format(format);
    std::optional<ArrayView> biases;
    if (!bias.is_none()) {
        biases.emplace("bias", bias, Access::kRead);
        biases->require_rank({"outputs"});
        biases->require_size(0, "outputs", source.outputs, "in weight");
        source.bias = biases->floats();
    }
    const nb::gil_scoped_release release;
    new (self) PackedLinear(source, parsed, group, static_cast<int>(num_threads));
}

void unpack(const PackedLinear& self, nb::handle out) {
    const ArrayView array("out", out, Access::kWrite);
    array.require_rank({"outputs", "inputs"});
    array.require_size(0, "outputs", self.matrix().outputs, "in the packed weight");
    array.require_size(1, "inputs", self.matrix().inputs, "in the packed weight");
    self.unpack(array.writable_floats());
}

void multiply(const PackedLinear& self, nb::handle x, nb::handle out, bool rounding,
              std::int64_t num_threads, std::optional<std::string_view> isa) {
    const ArrayView input("x", x, Access::kRead);
    const ArrayView output("out", out, Access::kWrite);
    input.require_rank({"rows", "inputs"});
    output.require_rank({"rows", "outputs"});
    input.require_size(1, "inputs", self.matrix().inputs, "in the weight");
    output.require_size(0, "rows", input.size(0), "in x");
    output.require_size(1, "outputs", self.matrix().outputs, "in the weight");
    const float* from = input.floats();
    float* to = output.writable_floats();
    check_num_threads(num_threads);
    const Isa level = resolve_isa(isa ? std::optional(parse_isa(*isa)) : std::nullopt);
    const nb::gil_scoped_release release;
    linear(self, from, input.size(1), input.size(0), to, output.size(1), rounding,
           static_cast<int>(num_threads), level);
}

bool fits(nb::handle weight, std::string_view format, std::int64_t num_threads) {
    const ArrayView weights("weight", weight, Access::kRead);
    const MatrixSource source = source_of(weights);
    check_num_threads(num_threads);
    const MatrixFormat parsed = parse_format(format);
    const nb::gil_scoped_release release;
    return holds_exactly(source, parsed, static_cast<int>(num_threads));
}

std::int64_t probe(std::int64_t steps, std::string_view arithmetic, std::int64_t num_threads,
                   std::optional<std::string_view> isa) {
    check_num_threads(num_threads);
    const Arithmetic parsed = parse_arithmetic(arithmetic);
    const Isa level = resolve_isa(isa ? std::optional(parse_isa(*isa)) : std::nullopt);
    const nb::gil_scoped_release release;
    return multiply_adds(steps, parsed, static_cast<int>(num_threads), level);
}

std::string narrowest(std::optional<std::string_view> isa) {
    const Isa level = resolve_isa(isa ? std::optional(parse_isa(*isa)) : std::nullopt);
    return std::string(arithmetic_name(narrow_arithmetic(level)));
}

nb::tuple memory_use() {
    const HugeMemoryUse use = huge_memory_use();
    return nb::make_tuple(use.slab_bytes, use.huge_page_bytes);
}

}  // namespace

void bind_linear(nb::module_& module) {
    nb::class_<PackedLinear>(module, "PackedLinear", "See dualpace.kernels.PackedLinear.")
        .def("__init__", &pack, nb::arg("weight").none(), nb::arg("bias").none(), nb::kw_only(),
             nb::arg("format"), nb::arg("group"), nb::arg("num_threads"),
             nb::sig("def __init__(self, weight: object, bias: object | None, *, format: str, "
                     "group: int, num_threads: int) -> None"))
        .def("multiply", &multiply, nb::arg("x").none(), nb::arg("out").none(), nb::kw_only(),
             nb::arg("rounding"), nb::arg("num_threads"), nb::arg("isa").none(),
             nb::sig("def multiply(self, x: object, out: object, *, rounding: bool, "
                     "num_threads: int, isa: str | None) -> None"))
        .def("unpack", &unpack, nb::arg("out").none(),
             nb::sig("def unpack(self, out: object) -> None"))
        .def_prop_ro("outputs", [](const PackedLinear& self) { return self.matrix().outputs; })
        .def_prop_ro("inputs", [](const PackedLinear& self) { return self.matrix().inputs; })
        .def_prop_ro("num_bytes", &PackedLinear::num_bytes)
        .def_prop_ro("format", [](const PackedLinear& self) {
            return std::string(format_name(self.matrix().format));
        });
    module.def("holds_exactly", &fits, nb::arg("weight").none(), nb::kw_only(), nb::arg("format"),
               nb::arg("num_threads"),
               nb::sig("def holds_exactly(weight: object, *, format: str, num_threads: int) -> "
                       "bool"),
               "See dualpace.kernels.holds_exactly.");
    module.def("multiply_adds", &probe, nb::arg("steps"), nb::kw_only(), nb::arg("arithmetic"),
               nb::arg("num_threads"), nb::arg("isa").none(),
               nb::sig("def multiply_adds(steps: int, *, arithmetic: str, num_threads: int, isa: "
                       "str | None) -> int"),
               "See dualpace.kernels.multiply_adds.");
    module.def("narrow_arithmetic", &narrowest, nb::kw_only(), nb::arg("isa").none(),
               nb::sig("def narrow_arithmetic(*, isa: str | None) -> str"),
               "See dualpace.kernels.narrow_arithmetic.");
    module.def("huge_memory_use", &memory_use, nb::sig("def huge_memory_use() -> tuple[int, int]"),
               "Bytes held for packed weights, and how many of them lie on huge pages.");
}

}  // namespace dualpace
