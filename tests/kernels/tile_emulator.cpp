// Runs the tile instructions of AMX on processors that lack them: each raises SIGILL, and the
// handler does what Intel's manual says of it (volume 2), then goes on behind it. Shares nothing
// with the kernels: sums are the processor's own fused multiply-adds, with subnormals as zeros.
//
// Wrong shapes, unknown instructions and tiles that were not configured end the process.
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>
#include <xmmintrin.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

struct TileState {
    bool configured = false;
    std::uint8_t rows[8];
    std::uint16_t row_bytes[8];
    char data[8][16][64];
};

thread_local TileState tiles;
std::atomic<long> executed{0};
std::atomic<long> configured_threads{0};

[[noreturn]] void fail(const char* text) {
    if (write(STDERR_FILENO, text, std::strlen(text)) < 0) _exit(98);
    _exit(99);
}

void require(bool holds, const char* text) {
    if (!holds) fail(text);
}

std::int64_t register_value(const ucontext_t& context, int number) {
    constexpr int kOrder[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                REG_R12, REG_R13, REG_R14, REG_R15};
    return context.uc_mcontext.gregs[kOrder[number]];
}

template <class T>
std::int64_t take(const std::uint8_t*& at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    at += sizeof value;
    return value;
}

struct Operand {
    char* base;
    std::int64_t index;  // times its scale
};

// The memory operand behind a ModRM byte; `at` moves behind it.
Operand operand_of(const ucontext_t& context, std::uint8_t modrm, int high_base, int high_index,
                   const std::uint8_t*& at) {
    const int mod = modrm >> 6;
    std::int64_t base = 0;
    std::int64_t index = 0;
    if ((modrm & 7) == 4) {
        const std::uint8_t sib = *at++;
        const int number = (sib >> 3 & 7) | high_index;
        if (number != 4) index = register_value(context, number) << (sib >> 6);
        if ((sib & 7) == 5 && mod == 0) {
            base = take<std::int32_t>(at);
        } else {
            base = register_value(context, (sib & 7) | high_base);
        }
    } else if ((modrm & 7) == 5 && mod == 0) {
        base = take<std::int32_t>(at);
        base += reinterpret_cast<std::int64_t>(at);
    } else {
        base = register_value(context, (modrm & 7) | high_base);
    }
    if (mod == 1) base += take<std::int8_t>(at);
    if (mod == 2) base += take<std::int32_t>(at);
    return {reinterpret_cast<char*>(base), index};
}

void load_config(const char* from) {
    require(from[0] == 1, "ldtilecfg: not palette 1\n");
    if (!tiles.configured) ++configured_threads;
    for (int i = 0; i < 8; ++i) {
        std::memcpy(&tiles.row_bytes[i], from + 16 + 2 * i, 2);
        tiles.rows[i] = static_cast<std::uint8_t>(from[48 + i]);
        require(tiles.rows[i] <= 16 && tiles.row_bytes[i] <= 64, "ldtilecfg: too large\n");
        require((tiles.rows[i] == 0) == (tiles.row_bytes[i] == 0), "ldtilecfg: half a shape\n");
    }
    for (int i = 1; i < 16; ++i) require(from[i] == 0, "ldtilecfg: reserved bytes\n");
    std::memset(tiles.data, 0, sizeof tiles.data);
    tiles.configured = true;
}

void release() {
    if (tiles.configured) --configured_threads;
    tiles.configured = false;
}

void move(int tile, const Operand& memory, bool store) {
    require(tiles.rows[tile] != 0, "tile move: the tile has no shape\n");
    if (!store) std::memset(tiles.data[tile], 0, sizeof tiles.data[tile]);
    for (int row = 0; row < tiles.rows[tile]; ++row) {
        char* const at = memory.base + row * memory.index;
        char* const data = tiles.data[tile][row];
        std::memcpy(store ? at : data, store ? data : at, tiles.row_bytes[tile]);
    }
}

float widen(const char* element) {
    float value = 0.0f;
    std::memcpy(reinterpret_cast<char*>(&value) + 2, element, 2);
    return value;
}

void dot(int c, int a, int b) {
    require(c != a && c != b && a != b, "tdpbf16ps: a tile twice\n");
    require(tiles.rows[c] == tiles.rows[a] && tiles.row_bytes[c] == tiles.row_bytes[b] &&
                tiles.row_bytes[a] == 4 * tiles.rows[b] && tiles.rows[c] != 0,
            "tdpbf16ps: shapes do not agree\n");
    for (int m = 0; m < tiles.rows[c]; ++m) {
        float sums[32] = {};
        for (int k = 0; k < tiles.rows[b]; ++k) {
            const char* const pair = tiles.data[a][m] + 4 * k;
            for (int n = 0; n < tiles.row_bytes[c] / 4; ++n) {
                const char* const other = tiles.data[b][k] + 4 * n;
                float& first = sums[2 * n];
                float& second = sums[2 * n + 1];
                first = __builtin_fmaf(widen(pair), widen(other), first);
                second = __builtin_fmaf(widen(pair + 2), widen(other + 2), second);
            }
        }
        float row[16];
        std::memcpy(row, tiles.data[c][m], sizeof row);
        for (int n = 0; n < tiles.row_bytes[c] / 4; ++n) row[n] += sums[2 * n] + sums[2 * n + 1];
        std::memcpy(tiles.data[c][m], row, sizeof row);
    }
}

void execute(ucontext_t& context) {
    const auto* at = reinterpret_cast<const std::uint8_t*>(context.uc_mcontext.gregs[REG_RIP]);
    const std::uint8_t* const vex = at;
    require(vex[0] == 0xc4 && (vex[1] & 0x1f) == 2 && (vex[2] & 0x84) == 0,
            "no tile instruction\n");
    require((vex[1] & 0x80) != 0, "tiles have numbers up to 7\n");
    const int high_index = (vex[1] & 0x40) != 0 ? 0 : 8;
    const int high_base = (vex[1] & 0x20) != 0 ? 0 : 8;
    const int other = ~(vex[2] >> 3) & 15;
    const int prefix = vex[2] & 3;  // none, 66, f3, f2
    const std::uint8_t opcode = vex[3];
    const std::uint8_t modrm = vex[4];
    const int tile = modrm >> 3 & 7;
    at += 5;
    const bool memory = modrm < 0xc0;
    const Operand operand =
        memory ? operand_of(context, modrm, high_base, high_index, at) : Operand{nullptr, 0};
    const bool config = opcode == 0x49 && prefix == 0;
    require(config || tiles.configured, "tiles are not configured\n");
    if (config && memory) {
        load_config(operand.base);
    } else if (config && modrm == 0xc0) {
        release();
    } else if (opcode == 0x49 && prefix == 3 && !memory) {
        std::memset(tiles.data[tile], 0, sizeof tiles.data[tile]);
    } else if (opcode == 0x4b && memory && (prefix == 3 || prefix == 2)) {
        move(tile, operand, prefix == 2);
    } else if (opcode == 0x5c && prefix == 2 && !memory) {
        dot(tile, modrm & 7, other);
    } else {
        fail("an instruction that is not emulated\n");
    }
    context.uc_mcontext.gregs[REG_RIP] = reinterpret_cast<std::int64_t>(at);
}

void on_illegal(int, siginfo_t*, void* context) {
    constexpr unsigned kNearest = 0x1f80;
    constexpr unsigned kZeros = (1u << 15) | (1u << 6);
    const unsigned before = _mm_getcsr();
    _mm_setcsr(kNearest | kZeros);
    execute(*static_cast<ucontext_t*>(context));
    _mm_setcsr(before);
    ++executed;
}

}  // namespace

extern "C" {

int install() {
    struct sigaction action = {};
    action.sa_sigaction = on_illegal;
    action.sa_flags = SA_SIGINFO;
    return sigaction(SIGILL, &action, nullptr);
}

long executed_instructions() { return executed; }

long threads_with_tiles() { return configured_threads; }
}
