// Reads memory as fast as it can be read: the limit that other kernels are held against.
#pragma once

#include <cstdint>

namespace dualpace {

// Reads `count` words front to back, an equal piece on each thread, and returns their sum modulo
// 2^64.
std::uint64_t stream_read(const std::uint64_t* words, std::int64_t count, int num_threads);

}  // namespace dualpace
