// Ties the threads of the OpenMP pool to processors.
#pragma once

#include <vector>

namespace dualpace {

// Ties thread i of a team of cpus.size() threads to processor cpus[i]; thread 0 is the caller.
// Throws std::invalid_argument naming the first processor that a thread may not run on, after all
// others have been tied.
void pin_threads(const std::vector<int>& cpus);

// For each thread of a team, the processors that it may run on.
std::vector<std::vector<int>> thread_affinities(int num_threads);

}  // namespace dualpace
