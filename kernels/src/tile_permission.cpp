#include "dualpace/tile_permission.h"

#include <cerrno>
#include <cstring>

#include "dualpace/isa.h"

#if defined(DUALPACE_X86) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace dualpace {

#if defined(DUALPACE_X86) && defined(__linux__)
int request_tile_permission() {
    // asm/prctl.h of Linux 5.16 and later; older headers lack them.
    constexpr int kGetPermissions = 0x1022;
    constexpr int kRequestPermission = 0x1023;
    constexpr unsigned long kTileData = 18;
    if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) return errno;
    unsigned long granted = 0;
    if (syscall(SYS_arch_prctl, kGetPermissions, &granted) != 0) return errno;
    return (granted >> kTileData & 1) != 0 ? 0 : EPERM;
}
#else
int request_tile_permission() { return ENOSYS; }
#endif

std::string describe_tile_refusal(bool saved, int error) {
    if (!saved) return "the operating system does not save tiles on a context switch";
    if (error == 0) return "";
    std::string text = "the operating system refused permission (arch_prctl: ";
    text += std::strerror(error);
    text += ")";
    if (error == EINVAL) text += "; it is older than Linux 5.16";
    // The kernel looks at each thread's sigaltstack before it lets frames grow.
    if (error == ENOSPC) text += "; a thread's alternative signal stack is too small";
    if (error == EPERM || error == ENOSYS) text += "; a seccomp filter may forbid the call";
    return text;
}

const std::string& tile_refusal() {
    static const std::string refusal = [] {
        const detail::HostTiles tiles = detail::host_tiles();
        if (!tiles.present) return std::string();
        return describe_tile_refusal(tiles.saved, tiles.saved ? request_tile_permission() : 0);
    }();
    return refusal;
}

}  // namespace dualpace
