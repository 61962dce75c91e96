// Which OpenMP runtime the kernels ended up with: two in one process means two thread pools on the
// same cores.
#pragma once

#include <string>

namespace dualpace {

// Path of the shared library that serves omp_* calls; empty if it cannot be told.
std::string openmp_runtime_path();

int openmp_max_threads();

}  // namespace dualpace
