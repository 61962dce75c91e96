#include "dualpace/pinning.h"

#include <sched.h>

#include <atomic>
#include <stdexcept>
#include <string>

#include "dualpace/team.h"

namespace dualpace {
namespace {

// Room for any machine: the kernel's own limit is 8192.
constexpr int kMostCpus = 8192;

class CpuSet {
  public:
    CpuSet() : set_(CPU_ALLOC(kMostCpus)) {
        if (set_ == nullptr) throw std::bad_alloc();
        CPU_ZERO_S(size(), set_);
    }
    ~CpuSet() { CPU_FREE(set_); }
    CpuSet(const CpuSet&) = delete;
    CpuSet& operator=(const CpuSet&) = delete;

    static std::size_t size() { return CPU_ALLOC_SIZE(kMostCpus); }
    cpu_set_t* get() { return set_; }
    void add(int cpu) { CPU_SET_S(static_cast<std::size_t>(cpu), size(), set_); }
    std::vector<int> members() const {
        std::vector<int> cpus;
        for (int cpu = 0; cpu < kMostCpus; ++cpu) {
            if (CPU_ISSET_S(static_cast<std::size_t>(cpu), size(), set_)) cpus.push_back(cpu);
        }
        return cpus;
    }

  private:
    cpu_set_t* set_;
};

bool pin_this_thread(int cpu) {
    CpuSet set;
    set.add(cpu);
    return sched_setaffinity(0, CpuSet::size(), set.get()) == 0;
}

}  // namespace

void pin_threads(const std::vector<int>& cpus) {
    for (const int cpu : cpus) {
        if (cpu < 0 || cpu >= kMostCpus) {
            throw std::invalid_argument("cpus: " + std::to_string(cpu) + " is no processor number");
        }
    }
    std::atomic<int> refused{-1};
    run_team(static_cast<int>(cpus.size()), [&](const Team& team) {
        const int cpu = cpus[static_cast<std::size_t>(team.index)];
        if (!pin_this_thread(cpu)) refused = cpu;
    });
    if (refused >= 0) {
        throw std::invalid_argument("cpus: a thread may not run on processor " +
                                    std::to_string(refused));
    }
}

std::vector<std::vector<int>> thread_affinities(int num_threads) {
    std::vector<std::vector<int>> affinities(static_cast<std::size_t>(num_threads));
    run_team(num_threads, [&](const Team& team) {
        CpuSet set;
        if (sched_getaffinity(0, CpuSet::size(), set.get()) == 0)
            affinities[static_cast<std::size_t>(team.index)] = set.members();
    });
    return affinities;
}

}  // namespace dualpace
