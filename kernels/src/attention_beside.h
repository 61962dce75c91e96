// One group's attention, computed by a thread between its tasks of another group's products, which
// fetch keys and values into the core's own caches meanwhile. Private to host_decoder.cpp.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dualpace/attention_run.h"
#include "dualpace/beside.h"

namespace dualpace {

// Keeps in step with the products: when a part of their multiply-adds is done, so is as large a
// part of the keys, but for a span.
class AttentionBeside final : public Beside {
  public:
    // One thread's share: the parts from `part` on, every `step`. It expects so many multiply-adds
    // of the products; `memory` is its own, kept between calls.
    AttentionBeside(const AttentionRun& run, std::int64_t part, std::int64_t step,
                    std::int64_t num_parts, double multiply_adds, std::vector<MemoryPiece>& memory)
        : run_(run),
          step_(step),
          num_parts_(num_parts),
          expected_(multiply_adds),
          pieces_(memory),
          walk_(run, part),
          walked_(part),
          fetch_(run, part),
          fetched_(part) {
        pieces_.clear();
        for (; part < num_parts; part += step) bytes_ += run.bytes(part);
        settle();
    }

    FetchList before(double multiply_adds) override {
        const double share = std::min(1.0, (done_ + multiply_adds) / expected_);
        const auto wanted = static_cast<std::int64_t>(share * static_cast<double>(bytes_));
        // What the product before did not get to comes too late.
        first_ = last_;
        while (handed_ < wanted && (last_ < pieces_.size() || open_span())) {
            if (last_ < pieces_.size()) handed_ += pieces_[last_++].bytes();
            if (last_ == pieces_.size()) handed_ = listed_;
        }
        return {pieces_.data() + first_, pieces_.data() + last_};
    }

    // Computes with the spans that were fetched as a whole.
    void after(double multiply_adds) override {
        done_ += multiply_adds;
        const std::int64_t ready = opened_ - (last_ < pieces_.size() ? 1 : 0);
        if (computed_ < ready) advance_to(ready);
    }

    // Computes what is left.
    void finish() {
        if (walked_ < num_parts_) advance_to(INT64_MAX);
    }

    double seconds() const { return seconds_; }

  private:
    using Clock = std::chrono::steady_clock;

    // Both cursors leave parts that have no more.
    void settle() {
        while (!walk_.more() && (walked_ += step_) < num_parts_)
            walk_ = AttentionWalk(run_, walked_);
        while (!fetch_.more() && (fetched_ += step_) < num_parts_)
            fetch_ = SpanCursor(run_, fetched_);
    }

    // Lists the next span's pieces; false: there is none.
    bool open_span() {
        if (fetched_ >= num_parts_) return false;
        pieces_.erase(pieces_.begin(), pieces_.begin() + static_cast<std::ptrdiff_t>(first_));
        last_ -= first_;
        first_ = 0;
        listed_ += run_.list(fetch_.at(), pieces_);
        fetch_.pass();
        ++opened_;
        settle();
        return true;
    }

    void advance_to(std::int64_t spans) {
        const Clock::time_point start = Clock::now();
        for (; computed_ < spans && walked_ < num_parts_; ++computed_) {
            walk_.advance();
            settle();
        }
        seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
    }

    const AttentionRun& run_;
    const std::int64_t step_;
    const std::int64_t num_parts_;
    const double expected_;
    std::vector<MemoryPiece>& pieces_;
    std::size_t first_ = 0;  // of pieces_, [first_, last_) are with the task under way,
    std::size_t last_ = 0;   // and those from last_ on are of the span that was opened last
    AttentionWalk walk_;
    std::int64_t walked_;  // the part that walk_ is in
    SpanCursor fetch_;
    std::int64_t fetched_;
    std::int64_t bytes_ = 0;     // of all
    std::int64_t listed_ = 0;    // of spans that were opened
    std::int64_t handed_ = 0;    // of those, what was handed out
    std::int64_t opened_ = 0;    // spans
    std::int64_t computed_ = 0;  // spans
    double done_ = 0.0;          // multiply-adds
    double seconds_ = 0.0;
};

}  // namespace dualpace
