// Answers the cpuid instructions of libraries that hide_avx512.py marked as a processor would that
// ends with AVX2: without AVX-512, AVX-VNNI and AMX. To be preloaded:
//   cc -O2 -shared -fPIC -o hide_avx512.so hide_avx512.c
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <string.h>
#include <ucontext.h>

// What stands where `cpuid` stood: no instruction in 64-bit mode, and one byte of cpuid left. The
// same two bytes are MARK in hide_avx512.py.
static const unsigned char kMark[2] = {0x06, 0xa2};

enum { kFeatureLeaf = 7 };

static void hide(unsigned leaf, unsigned subleaf, unsigned *a, unsigned *b, unsigned *c,
                 unsigned *d) {
    if (leaf != kFeatureLeaf) return;
    if (subleaf == 0) {
        // F, DQ, IFMA, PF, ER, CD, BW, VL; VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ; 4VNNIW, 4FMAPS,
        // VP2INTERSECT, AMX-BF16, FP16, AMX-TILE, AMX-INT8.
        *b &= ~(1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 | 1u << 30 |
                1u << 31);
        *c &= ~(1u << 1 | 1u << 6 | 1u << 11 | 1u << 12 | 1u << 14);
        *d &= ~(1u << 2 | 1u << 3 | 1u << 8 | 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25);
    } else if (subleaf == 1) {
        // All newer arithmetic: AVX-VNNI, AVX512-BF16, AVX-IFMA, AMX-FP16; AVX-VNNI-INT8 and -INT16,
        // AVX-NE-CONVERT, AVX10.
        *a = 0;
        *d = 0;
    }
}

static void answer(int number, siginfo_t *info, void *context) {
    greg_t *const registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    (void)info;
    if (memcmp((const void *)registers[REG_RIP], kMark, sizeof kMark) != 0) {
        signal(number, SIG_DFL);  // and let it happen again
        return;
    }
    const unsigned leaf = (unsigned)registers[REG_RAX];
    const unsigned subleaf = (unsigned)registers[REG_RCX];
    unsigned a, b, c, d;
    __cpuid_count(leaf, subleaf, a, b, c, d);
    hide(leaf, subleaf, &a, &b, &c, &d);
    registers[REG_RAX] = a;
    registers[REG_RBX] = b;
    registers[REG_RCX] = c;
    registers[REG_RDX] = d;
    registers[REG_RIP] += sizeof kMark;
}

__attribute__((constructor)) static void install(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = answer;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGILL, &action, NULL);
}
