// Runs one function on every thread of a team, and lets the threads wait for each other.
#pragma once

#include <omp.h>

#include <atomic>
#include <cstdint>

namespace dualpace {

// Where the threads of a team meet. A thread that waits looks again and again for about as long as
// a stage's threads are apart, then sleeps: on a machine with other work, a thread that goes on
// looking keeps those from running for which it waits. (OpenMP's own barrier goes on for
// milliseconds.)
class MeetingPoint {
  public:
    void wait(int count) {
        if (count == 1) return;
        const std::uint32_t round = round_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
            arrived_.store(0, std::memory_order_relaxed);
            round_.fetch_add(1, std::memory_order_release);
            round_.notify_all();
            return;
        }
        for (int look = 0; look < kLooks; ++look) {
            if (round_.load(std::memory_order_acquire) != round) return;
            pause();
        }
        round_.wait(round, std::memory_order_acquire);
    }

  private:
    // Some tens of microseconds.
    static constexpr int kLooks = 2000;

    static void pause() {
#if defined(DUALPACE_X86)
        __builtin_ia32_pause();
#endif
    }

    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<std::uint32_t> round_{0};
};

// A thread's place among those that run the same call.
struct Team {
    int index;
    int count;
    MeetingPoint* meeting;

    // Waits until all threads of the team have come here.
    void wait() const { meeting->wait(count); }
};

// Calls work(row) for a thread's share of `count` rows of `n` floats, the first at `rows`. Each is
// fetched while the one before it is worked on: other cores have written them last, and wait for
// nothing but the way from cache to cache.
template <class Work>
void each_row(const Team& team, const float* rows, std::int64_t stride, std::int64_t n,
              std::int64_t count, const Work& work) {
    constexpr std::int64_t kFloatsOfLine = 16;
    for (std::int64_t row = team.index; row < count; row += team.count) {
        const float* const next = rows + (row + team.count) * stride;
        if (row + team.count < count) {
            for (std::int64_t i = 0; i < n; i += kFloatsOfLine) __builtin_prefetch(next + i);
        }
        work(row);
    }
}

// Calls run(team) on each thread. The team is always a whole one, however little there is to do: a
// team of another size ends the pool's idle threads. The runtime may grant fewer threads than asked
// for.
template <class Run>
void run_team(int num_threads, const Run& run) {
    MeetingPoint meeting;
    if (num_threads == 1) {
        run(Team{0, 1, &meeting});
        return;
    }
#pragma omp parallel num_threads(num_threads) default(none) shared(run, meeting)
    run(Team{omp_get_thread_num(), omp_get_num_threads(), &meeting});
}

}  // namespace dualpace
