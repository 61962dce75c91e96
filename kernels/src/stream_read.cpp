#include "dualpace/stream_read.h"

namespace dualpace {
namespace {

std::uint64_t sum_of(const std::uint64_t* words, std::int64_t count) {
    // Independent sums, so that loads and not additions set the pace; two lines at a time.
    constexpr std::int64_t kSums = 16;
    // What the processor fetches of its own accord is not all that memory gives.
    constexpr std::int64_t kAhead = 512;
    constexpr std::int64_t kLineWords = 8;
    std::uint64_t sums[kSums] = {};
    std::int64_t i = 0;
    for (; i + kSums <= count; i += kSums) {
        for (std::int64_t j = 0; j < kSums; j += kLineWords)
            __builtin_prefetch(words + i + kAhead + j, 0, 2);
        for (std::int64_t j = 0; j < kSums; ++j) sums[j] += words[i + j];
    }
    std::uint64_t total = 0;
    for (; i < count; ++i) total += words[i];
    for (const std::uint64_t sum : sums) total += sum;
    return total;
}

}  // namespace

std::uint64_t stream_read(const std::uint64_t* words, std::int64_t count, int num_threads) {
    std::uint64_t total = 0;
#pragma omp parallel for num_threads(num_threads) schedule(static) \
    reduction(+ : total) default(none) shared(words, count, num_threads)
    for (int part = 0; part < num_threads; ++part) {
        const std::int64_t first = count * part / num_threads;
        total += sum_of(words + first, count * (part + 1) / num_threads - first);
    }
    return total;
}

}  // namespace dualpace
