// Shows how a batch is split over threads. For tests and for looking at imbalance; not for serving.
#include "dualpace/attention_plan.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <utility>
#include <vector>

#include "array_view.h"
#include "bindings.h"
#include "dualpace/threads.h"

namespace nb = nanobind;

namespace dualpace {
namespace {

using Bounds = std::vector<std::pair<std::int64_t, std::int64_t>>;

std::pair<std::int64_t, Bounds> plan(nb::handle lengths, std::int64_t heads, std::int64_t kv_heads,
                                     std::int64_t window, std::int64_t num_parts) {
    const ArrayView array("lengths", lengths, Access::kRead);
    array.require_rank({"batch"});
    check_num_threads(num_parts);
    PagedAttentionArgs args{};
    args.lengths = array.int32s();
    args.batch = array.size(0);
    args.heads = heads;
    args.kv_heads = kv_heads;
    args.window = window;
    AttentionPlan plan;
    plan.build(args, num_parts);
    Bounds bounds;
    for (std::int64_t part = 0; part <= num_parts; ++part) {
        bounds.emplace_back(plan.begin(part).strip, plan.begin(part).span);
    }
    return {plan.kv_heads_together(), std::move(bounds)};
}

}  // namespace

void bind_attention_plan(nb::module_& module) {
    module.attr("SPAN_KEYS") = kSpanKeys;
    module.attr("MOST_SPAN_KEYS") = kMostSpanKeys;
    module.def("attention_plan", &plan, nb::arg("lengths").none(), nb::kw_only(), nb::arg("heads"),
               nb::arg("kv_heads"), nb::arg("window"), nb::arg("num_parts"),
               nb::sig("def attention_plan(lengths: object, *, heads: int, kv_heads: int, "
                       "window: int, num_parts: int) -> tuple[int, list[tuple[int, int]]]"),
               "A strip's kv heads, and bounds of the parts, as (strip, span).");
}

}  // namespace dualpace
