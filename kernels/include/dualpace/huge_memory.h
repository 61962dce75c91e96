// Memory for what is read over and over: on huge pages where the kernel gives them, which are worth
// up to a fifth of the read bandwidth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace dualpace {

// Zeroed bytes on a cache line, from slabs that several callers share. A slab goes when the last of
// them has let go. Throws std::bad_alloc.
std::shared_ptr<std::byte> allocate_huge(std::int64_t bytes);

// Bytes of all slabs now, and how many of them lie on huge pages (as /proc/self/smaps tells it).
struct HugeMemoryUse {
    std::int64_t slab_bytes;
    std::int64_t huge_page_bytes;
};
HugeMemoryUse huge_memory_use();

}  // namespace dualpace
