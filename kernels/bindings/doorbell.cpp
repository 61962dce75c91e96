// Waiting for a word in shared memory to change, across processes and containers.
//
// A waiter spins for a bounded time, then sleeps in the kernel (futex(2), not the private kind).
// The interpreter lock is released throughout, and signals end a sleep without an error.
#include <linux/futex.h>
#include <nanobind/nanobind.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <stdexcept>

#include "array_view.h"
#include "bindings.h"

namespace nb = nanobind;

namespace dualpace {
namespace {

using Word = std::atomic<std::uint32_t>;
static_assert(sizeof(Word) == sizeof(std::uint32_t) && Word::is_always_lock_free);

Word& word_at(nb::handle words, std::int64_t index, Access access) {
    const ArrayView array("words", words, access);
    array.require_rank({"count"});
    if (index < 0 || index >= array.size(0)) throw std::invalid_argument("index: out of range");
    return reinterpret_cast<Word*>(const_cast<std::int32_t*>(array.int32s()))[index];
}

std::int64_t now_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

void wake_all(Word& word) { syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

std::int64_t ring(nb::handle words, std::int64_t index) {
    Word& word = word_at(words, index, Access::kWrite);
    const std::uint32_t now = word.fetch_add(1, std::memory_order_release) + 1;
    wake_all(word);
    return now;
}

void publish(nb::handle words, std::int64_t index, std::int64_t value) {
    Word& word = word_at(words, index, Access::kWrite);
    word.store(static_cast<std::uint32_t>(value), std::memory_order_release);
    wake_all(word);
}

std::int64_t load(nb::handle words, std::int64_t index) {
    return word_at(words, index, Access::kRead).load(std::memory_order_acquire);
}

std::int64_t wait_changed(nb::handle words, std::int64_t index, std::int64_t seen,
                          std::int64_t spin_ns, std::int64_t timeout_ns) {
    Word& word = word_at(words, index, Access::kRead);
    const auto old = static_cast<std::uint32_t>(seen);
    const nb::gil_scoped_release release;
    const std::int64_t start = now_ns();
    while (word.load(std::memory_order_acquire) == old && now_ns() - start < spin_ns) relax();
    std::int64_t left = timeout_ns - (now_ns() - start);
    while (word.load(std::memory_order_acquire) == old && left > 0) {
        const timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
        syscall(SYS_futex, &word, FUTEX_WAIT, old, &timeout, nullptr, 0);
        left = timeout_ns - (now_ns() - start);
    }
    return word.load(std::memory_order_acquire);
}

}  // namespace

void bind_doorbell(nb::module_& module) {
    module.def("doorbell_ring", &ring, nb::arg("words").none(), nb::arg("index"),
               nb::sig("def doorbell_ring(words: object, index: int) -> int"),
               "See dualpace.kernels.ring.");
    module.def("doorbell_publish", &publish, nb::arg("words").none(), nb::arg("index"),
               nb::arg("value"),
               nb::sig("def doorbell_publish(words: object, index: int, value: int) -> None"),
               "See dualpace.kernels.publish.");
    module.def("doorbell_load", &load, nb::arg("words").none(), nb::arg("index"),
               nb::sig("def doorbell_load(words: object, index: int) -> int"),
               "See dualpace.kernels.load.");
    module.def("doorbell_wait", &wait_changed, nb::arg("words").none(), nb::arg("index"),
               nb::arg("seen"), nb::arg("spin_ns"), nb::arg("timeout_ns"),
               nb::sig("def doorbell_wait(words: object, index: int, seen: int, spin_ns: int, "
                       "timeout_ns: int) -> int"),
               "See dualpace.kernels.wait_changed.");
}

}  // namespace dualpace
