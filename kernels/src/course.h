// How far the groups of a step have come, and where they are to stop for those who join. Private to
// host_decoder.cpp.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "dualpace/host_decoder.h"

namespace dualpace {

// One thread of each group calls, where that is about to begin a layer; the head counts as the last
// one. The first group is that of the thread that called the step.
class Course {
  public:
    Course(std::int64_t first, std::int64_t num_layers) : end_(num_layers), lead_(first == end_) {
        begun_.fill(first);
    }

    // Whether the group goes on; waits while that is undecided.
    bool begin(std::size_t group, std::int64_t layer) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return held_ != layer; });
        if (stop_ == layer) return false;
        begun_[group] = layer + 1;
        return true;
    }

    // Lets the caller of the step do what it wants to, in the first group's thread. Meanwhile
    // nobody goes beyond the layer at which those who join would come in.
    StepRows poll(const Interruption& interruption) {
        if (!interruption.asked()) return {};
        const std::int64_t behind = hold();
        const bool late = behind > end_;
        StepRows newcomers = interruption.serve(late ? kTooLate : behind);
        if (late) return {};
        const std::lock_guard lock(mutex_);
        held_ = kNowhere;
        if (newcomers.count() != 0) stop_ = behind;
        changed_.notify_all();
        return newcomers;
    }

    // Where those who join come in; kNowhere: nobody does.
    std::int64_t stop() const { return stop_; }

    // The second group begins when the first has its first attention behind it: one reads memory
    // while the other multiplies.
    void take_lead() {
        const std::lock_guard lock(mutex_);
        lead_ = true;
        changed_.notify_all();
    }
    void give_lead() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return lead_; });
    }

    void end(std::size_t group) {
        const std::lock_guard lock(mutex_);
        ended_[group] = true;
        changed_.notify_all();
    }

    // Waits for a moment; whether the group has ended by then.
    bool has_ended(std::size_t group) {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, kMoment, [&] { return ended_[group]; });
    }

    static constexpr std::int64_t kNowhere = -1;

  private:
    static constexpr std::chrono::microseconds kMoment{500};

    std::int64_t hold() {
        const std::lock_guard lock(mutex_);
        const std::int64_t behind = *std::max_element(begun_.begin(), begun_.end());
        if (behind <= end_) held_ = behind;
        return behind;
    }

    const std::int64_t end_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::array<std::int64_t, kMostGroups> begun_;  // behind the layers that were begun
    std::int64_t held_ = kNowhere;
    std::int64_t stop_ = kNowhere;
    std::array<bool, kMostGroups> ended_{};
    bool lead_;
};

}  // namespace dualpace
