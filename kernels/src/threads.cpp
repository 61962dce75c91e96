#include "dualpace/threads.h"

#include <stdexcept>
#include <string>

namespace dualpace {

void check_num_threads(std::int64_t num_threads) {
    if (num_threads >= 1 && num_threads <= kMaxThreads) return;
    throw std::invalid_argument("num_threads: is " + std::to_string(num_threads) +
                                ", it must be from 1 to " + std::to_string(kMaxThreads));
}

}  // namespace dualpace
