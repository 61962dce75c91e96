// What a thread does beside the tasks of a product: it computes something else between two tasks,
// and has each task fetch the memory that this will read into the core's own caches. Knows neither
// products nor attention.
#pragma once

#include <cstdint>

namespace dualpace {

// Lines of memory that follow each other.
struct MemoryPiece {
    const char* at;
    const char* end;

    std::int64_t bytes() const { return end - at; }
};

// Pieces that are still to be fetched; whoever fetches moves their `at` and `next`.
struct FetchList {
    MemoryPiece* next;
    MemoryPiece* end;
};

class Beside {
  public:
    // What a task of so many multiply-adds is to fetch.
    virtual FetchList before(double multiply_adds) = 0;
    // The task is done.
    virtual void after(double multiply_adds) = 0;

  protected:
    ~Beside() = default;
};

}  // namespace dualpace
