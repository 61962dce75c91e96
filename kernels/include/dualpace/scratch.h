// Working memory of fp32 that is kept between calls.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace dualpace {

inline constexpr std::int64_t kFloatsPerCacheLine = 16;

inline std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

// Memory that grows and is kept; contents are not.
class Scratch {
  public:
    float* reserve(std::int64_t floats) {
        if (floats > capacity_) {
            constexpr std::size_t kAlignment = 64;
            const auto bytes =
                static_cast<std::size_t>(round_up(floats, kFloatsPerCacheLine)) * sizeof(float);
            memory_.reset(static_cast<float*>(std::aligned_alloc(kAlignment, bytes)));
            capacity_ = memory_ ? floats : 0;
            if (!memory_) throw std::bad_alloc();
        }
        return memory_.get();
    }

  private:
    struct Free {
        void operator()(float* p) const { std::free(p); }
    };
    std::unique_ptr<float, Free> memory_;
    std::int64_t capacity_ = 0;
};

}  // namespace dualpace
