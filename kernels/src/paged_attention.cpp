// A decode attention call on a team of its own.
#include "dualpace/paged_attention.h"

#include <omp.h>

#include "dualpace/attention_run.h"

namespace dualpace {

void paged_attention_decode(const PagedAttentionArgs& args, int num_threads, Isa isa) {
    // Kept for the thread's next call, so that a decode loop does not allocate.
    thread_local AttentionPlan plan;
    thread_local Scratch scratch;
    zero_empty_sequences(args);
    plan.build(args, num_threads);
    const Memory memory(args, plan, scratch);
    const AttentionRun runner(args, plan, memory, span_kernels(isa));
    if (num_threads == 1) {
        runner.run(0);
        return;
    }
    // Always the whole team, however little there is to do: a team of another size ends the pool's
    // idle threads.
#pragma omp parallel num_threads(num_threads) default(none) shared(runner, num_threads)
    {
        // The runtime may grant fewer threads than parts.
        const int team = omp_get_num_threads();
        for (int part = omp_get_thread_num(); part < num_threads; part += team) runner.run(part);
#pragma omp barrier
        for (int part = omp_get_thread_num(); part < num_threads; part += team) runner.close(part);
    }
}

}  // namespace dualpace
