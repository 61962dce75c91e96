// A decode attention call on a team of its own.
#include "dualpace/paged_attention.h"

#include <atomic>

#include "dualpace/attention_run.h"
#include "dualpace/team.h"

namespace dualpace {

void paged_attention_decode(const PagedAttentionArgs& args, int num_threads, Isa isa) {
    // Kept for the thread's next call, so that a decode loop does not allocate.
    thread_local AttentionPlan plan;
    thread_local Scratch scratch;
    zero_empty_sequences(args);
    plan.build(args, num_threads);
    const Memory memory(args, plan, scratch);
    const AttentionRun runner(args, plan, memory, span_kernels(isa));
    run_team(num_threads, [&](const Team& team) {
        // The runtime may grant fewer threads than parts.
        for (int part = team.index; part < num_threads; part += team.count) runner.run(part);
        team.wait();
        for (int part = team.index; part < num_threads; part += team.count) runner.close(part);
    });
}

std::int64_t attention_multiply_adds(std::int64_t steps, ElementType type, std::int64_t group,
                                     int num_threads, Isa isa) {
    const SpanKernels& kernels = span_kernels(isa);
    std::atomic<std::int64_t> elements{0};
    run_team(num_threads, [&](const Team&) {
        float kept = 0.0f;
        elements += kernels.peak(type, group, steps, &kept);
        // Looks at the result, so that it must be computed.
        if (kept == -1.0f) elements = 0;
    });
    return elements;
}

}  // namespace dualpace
