// Runs one function on every thread of a team.
#pragma once

#include <omp.h>

#include "dualpace/linear.h"

namespace dualpace {

// Waits until all threads of the team that run_team started have come here.
inline void wait_for_team() {
#pragma omp barrier
}

// Calls run(team) on each thread. The team is always a whole one, however little there is to do: a
// team of another size ends the pool's idle threads. The runtime may grant fewer threads than asked
// for.
template <class Run>
void run_team(int num_threads, const Run& run) {
    if (num_threads == 1) {
        run(Team{0, 1});
        return;
    }
#pragma omp parallel num_threads(num_threads) default(none) shared(run)
    run(Team{omp_get_thread_num(), omp_get_num_threads()});
}

}  // namespace dualpace
