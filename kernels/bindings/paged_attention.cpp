#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string_view.h>

#include "array_view.h"
#include "bindings.h"
#include "dualpace/isa.h"
#include "dualpace/paged_attention.h"
#include "dualpace/threads.h"

namespace nb = nanobind;

namespace dualpace {
namespace {

struct Arrays {
    ArrayView query, kv, block_tables, rows, lengths, out;
};

void check_shapes(const Arrays& a) {
    a.query.require_rank({"batch", "heads", "head_dim"});
    a.kv.require_rank({"num_blocks", "2", "kv_heads", "block_size", "head_dim"});
    a.block_tables.require_rank({"num_tables", "table_width"});
    a.rows.require_rank({"batch"});
    a.lengths.require_rank({"batch"});
    a.out.require_rank({"batch", "heads", "head_dim"});
    a.kv.require_size(1, "axis 1", 2, "it holds keys and values");
    a.kv.require_size(4, "head_dim", a.query.size(2), "in query");
    a.rows.require_size(0, "batch", a.query.size(0), "in query");
    a.lengths.require_size(0, "batch", a.query.size(0), "in query");
    a.out.require_size(0, "batch", a.query.size(0), "in query");
    a.out.require_size(1, "heads", a.query.size(1), "in query");
    a.out.require_size(2, "head_dim", a.query.size(2), "in query");
}

PagedAttentionArgs to_args(const Arrays& a, float scale, std::int64_t window, bool rounding) {
    PagedAttentionArgs args{};
    args.query = a.query.floats();
    args.kv = a.kv.data();
    args.tables = a.block_tables.int32s();
    args.rows = a.rows.int32s();
    args.lengths = a.lengths.int32s();
    args.out = a.out.writable_floats();
    args.batch = a.query.size(0);
    args.heads = a.query.size(1);
    args.head_dim = a.query.size(2);
    args.num_blocks = a.kv.size(0);
    args.kv_heads = a.kv.size(2);
    args.block_size = a.kv.size(3);
    args.num_tables = a.block_tables.size(0);
    args.table_width = a.block_tables.size(1);
    args.kv_type = a.kv.element_type();
    args.scale = scale;
    args.window = window;
    args.rounding = rounding;
    return args;
}

void decode(nb::handle query, nb::handle kv, nb::handle block_tables, nb::handle rows,
            nb::handle lengths, nb::handle out, float scale, std::int64_t window, bool rounding,
            std::int64_t num_threads, std::optional<std::string_view> isa) {
    const Arrays arrays{{"query", query, Access::kRead},
                        {"kv", kv, Access::kRead},
                        {"block_tables", block_tables, Access::kRead},
                        {"rows", rows, Access::kRead},
                        {"lengths", lengths, Access::kRead},
                        {"out", out, Access::kWrite}};
    check_shapes(arrays);
    const PagedAttentionArgs args = to_args(arrays, scale, window, rounding);
    const Isa level = resolve_isa(isa ? std::optional(parse_isa(*isa)) : std::nullopt);
    const nb::gil_scoped_release release;
    check_num_threads(num_threads);
    check_paged_attention(args);
    paged_attention_decode(args, static_cast<int>(num_threads), level);
}

std::int64_t probe(std::int64_t steps, nb::handle like, std::int64_t group,
                   std::int64_t num_threads, std::optional<std::string_view> isa) {
    const ElementType type = ArrayView("like", like, Access::kRead).element_type();
    const Isa level = resolve_isa(isa ? std::optional(parse_isa(*isa)) : std::nullopt);
    const nb::gil_scoped_release release;
    check_num_threads(num_threads);
    return attention_multiply_adds(steps, type, group, static_cast<int>(num_threads), level);
}

}  // namespace

void bind_paged_attention(nb::module_& module) {
    module.def(
        "paged_attention_decode", &decode, nb::arg("query").none(), nb::arg("kv").none(),
        nb::arg("block_tables").none(), nb::arg("rows").none(), nb::arg("lengths").none(),
        nb::arg("out").none(), nb::kw_only(), nb::arg("scale"), nb::arg("window"),
        nb::arg("rounding"), nb::arg("num_threads"), nb::arg("isa").none(),
        nb::sig("def paged_attention_decode(query: object, kv: object, block_tables: object, "
                "rows: object, lengths: object, out: object, *, scale: float, window: int, "
                "rounding: bool, num_threads: int, isa: str | None) -> None"),
        "See dualpace.kernels.paged_attention_decode.");
    module.def("attention_multiply_adds", &probe, nb::arg("steps"), nb::kw_only(),
               nb::arg("like").none(), nb::arg("group"), nb::arg("num_threads"),
               nb::arg("isa").none(),
               nb::sig("def attention_multiply_adds(steps: int, *, like: object, group: int, "
                       "num_threads: int, isa: str | None) -> int"),
               "See dualpace.kernels.attention_multiply_adds.");
}

}  // namespace dualpace
