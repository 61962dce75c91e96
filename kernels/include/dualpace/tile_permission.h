// Whether this process may use the processor's tiles (AMX). Linux keeps their 8 KiB of state only
// for processes that ask (Documentation/arch/x86/xstate.rst).
#pragma once

#include <string>

namespace dualpace {

// Asks for the whole process, also for threads to come. Returns 0 or an errno.
int request_tile_permission();

// Why tiles that a processor has cannot be used; empty if they can. `saved`: whether the operating
// system saves them on a context switch. `error`: of the request, 0 if it was granted.
std::string describe_tile_refusal(bool saved, int error);

// Why this process does not use tiles that its processor has; empty if it uses them, or there are
// none. Asks for permission the first time.
const std::string& tile_refusal();

}  // namespace dualpace
