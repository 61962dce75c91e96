#include "dualpace/huge_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <list>
#include <mutex>
#include <new>
#include <string>

namespace dualpace {
namespace {

constexpr std::int64_t kHugePage = std::int64_t{2} << 20;
constexpr std::int64_t kSlab = std::int64_t{64} << 20;
constexpr std::int64_t kLine = 64;

std::int64_t rounded_up(std::int64_t n, std::int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

struct Range {
    std::uintptr_t first;
    std::uintptr_t last;
};

// The slabs that are mapped now, and the one that is being filled.
struct Slabs {
    std::mutex mutex;
    std::list<Range> mapped;
    std::weak_ptr<std::byte> current;
    std::int64_t used = 0;
    std::int64_t size = 0;
};

Slabs& slabs() {
    // Never destroyed: slabs may be let go after static objects are.
    static auto* all = new Slabs;
    return *all;
}

std::shared_ptr<std::byte> map_slab(std::int64_t bytes) {
    const auto length = static_cast<std::size_t>(bytes);
    void* memory =
        mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    // Advice: without huge pages the slab is as good as other memory.
    madvise(memory, length, MADV_HUGEPAGE);
    const auto first = reinterpret_cast<std::uintptr_t>(memory);
    const auto entry = slabs().mapped.insert(slabs().mapped.end(), {first, first + length});
    return {static_cast<std::byte*>(memory), [length, entry](std::byte* p) {
                munmap(p, length);
                const std::lock_guard lock(slabs().mutex);
                slabs().mapped.erase(entry);
            }};
}

// Bytes on huge pages within those mappings of the process that overlap a slab.
std::int64_t huge_bytes_of(const std::list<Range>& ranges) {
    std::ifstream smaps("/proc/self/smaps");
    std::int64_t bytes = 0;
    bool ours = false;
    for (std::string line; std::getline(smaps, line);) {
        unsigned long first = 0;
        unsigned long last = 0;
        long kib = 0;
        if (std::sscanf(line.c_str(), "%lx-%lx ", &first, &last) == 2) {
            ours = std::any_of(ranges.begin(), ranges.end(), [&](const Range& range) {
                return first < range.last && range.first < last;
            });
        } else if (ours && std::sscanf(line.c_str(), "AnonHugePages: %ld kB", &kib) == 1) {
            bytes += std::int64_t{kib} * 1024;
        }
    }
    return bytes;
}

}  // namespace

std::shared_ptr<std::byte> allocate_huge(std::int64_t bytes) {
    const std::int64_t size = rounded_up(std::max<std::int64_t>(bytes, 1), kLine);
    const std::lock_guard lock(slabs().mutex);
    std::shared_ptr<std::byte> slab = slabs().current.lock();
    if (!slab || slabs().used + size > slabs().size) {
        slabs().size = rounded_up(std::max(size, kSlab), kHugePage);
        slabs().used = 0;
        slab = map_slab(slabs().size);
        slabs().current = slab;
    }
    std::byte* const p = slab.get() + slabs().used;
    slabs().used += size;
    return {std::move(slab), p};
}

HugeMemoryUse huge_memory_use() {
    const std::lock_guard lock(slabs().mutex);
    HugeMemoryUse use{0, 0};
    for (const Range& range : slabs().mapped)
        use.slab_bytes += static_cast<std::int64_t>(range.last - range.first);
    if (use.slab_bytes > 0)
        use.huge_page_bytes = std::min(use.slab_bytes, huge_bytes_of(slabs().mapped));
    return use;
}

}  // namespace dualpace
