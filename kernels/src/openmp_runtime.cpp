#include "dualpace/openmp_runtime.h"

#include <dlfcn.h>
#include <omp.h>

namespace dualpace {

std::string openmp_runtime_path() {
    Dl_info info{};
    if (dladdr(reinterpret_cast<const void*>(&omp_get_max_threads), &info) == 0 ||
        info.dli_fname == nullptr)
        return {};
    return info.dli_fname;
}

int openmp_max_threads() { return omp_get_max_threads(); }

}  // namespace dualpace
