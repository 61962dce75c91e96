// Limits on the number of threads of one call.
#pragma once

#include <cstdint>

namespace dualpace {

inline constexpr std::int64_t kMaxThreads = 1024;

// Throws std::invalid_argument unless `num_threads` is from 1 to kMaxThreads.
void check_num_threads(std::int64_t num_threads);

}  // namespace dualpace
