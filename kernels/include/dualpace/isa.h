// Which instruction sets the kernels were compiled for, which of them this machine runs, and which
// one is used.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace dualpace {

// In rising order: each level runs on every machine that runs the next one.
//
// The portable twins run the logic of a level on any machine, in the compiler's own vectors. They
// exist to be tested: a call may ask for one, and dispatch never takes one.
enum class Isa {
    kGeneric = 0,
    kAvx2 = 1,
    kAvx512 = 2,
    kAvx512Vnni = 3,
    kAvx512Bf16 = 4,
    kAmxBf16 = 5,
    kPortable512 = 100,
    kPortableBf16 = 101,
    kPortableAmx = 102,
};

std::string_view isa_name(Isa isa);

// Throws std::invalid_argument that lists the known names, those of the twins aside.
Isa parse_isa(std::string_view name);

// Levels this library was compiled for, rising. Always starts with kGeneric.
std::vector<Isa> compiled_isas();

// Compiled levels that both the processor and the operating system support, rising.
std::vector<Isa> available_isas();

// Portable twins, in the order of their levels.
std::vector<Isa> portable_twins();

// Limits automatic dispatch to `cap` and below; nullopt lifts the limit. Process-wide. Throws
// std::invalid_argument if it is a portable twin.
void set_max_isa(std::optional<Isa> cap);
std::optional<Isa> max_isa();

// The highest available level within the cap, passed_over_isa() left out.
Isa dispatched_isa();

// The level that dispatch would take but for its arithmetic, which was measured to be slower than
// that of the level below; nullopt: there is none within the cap.
std::optional<Isa> passed_over_isa();

// `requested` if given, else dispatched_isa(). A request is not subject to the cap.
// Throws std::invalid_argument if the level was not compiled or this machine lacks it.
Isa resolve_isa(std::optional<Isa> requested);

// Counts a compiled level as available: for tests under an emulator of its instructions.
void assume_available(Isa isa);

namespace detail {

// What the processor and the operating system support, whether compiled or not. The first question
// for kAmxBf16 asks for the process's permission to use tiles.
bool host_supports(Isa isa);

// Whether the processor has tiles of bfloat16, and the operating system saves them.
struct HostTiles {
    bool present;
    bool saved;
};
HostTiles host_tiles();

}  // namespace detail
}  // namespace dualpace
