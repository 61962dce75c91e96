// Shows how a batch is split over threads. For tests and for looking at imbalance; not for serving.
#include "dualpace/attention_plan.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "array_view.h"
#include "bindings.h"
#include "dualpace/threads.h"

namespace nb = nanobind;

namespace dualpace {
namespace {

std::vector<std::pair<std::int64_t, std::int64_t>> plan(nb::handle lengths, std::int64_t kv_heads,
                                                        std::int64_t window,
                                                        std::int64_t num_parts) {
    const ArrayView array("lengths", lengths, Access::kRead);
    array.require_rank({"batch"});
    check_num_threads(num_parts);
    PagedAttentionArgs args{};
    args.lengths = array.int32s();
    args.batch = array.size(0);
    args.kv_heads = kv_heads;
    args.window = window;
    AttentionPlan plan;
    plan.build(args, num_parts);
    std::vector<std::pair<std::int64_t, std::int64_t>> bounds;
    for (std::int64_t part = 0; part <= num_parts; ++part) {
        bounds.emplace_back(plan.begin(part).strip, plan.begin(part).span);
    }
    return bounds;
}

}  // namespace

void bind_attention_plan(nb::module_& module) {
    module.attr("SPAN_KEYS") = kSpanKeys;
    module.def("attention_plan", &plan, nb::arg("lengths").none(), nb::kw_only(),
               nb::arg("kv_heads"), nb::arg("window"), nb::arg("num_parts"),
               nb::sig("def attention_plan(lengths: object, *, kv_heads: int, window: int, "
                       "num_parts: int) -> list[tuple[int, int]]"),
               "Bounds of the parts, as (sequence * kv_heads + kv head, span).");
}

}  // namespace dualpace
