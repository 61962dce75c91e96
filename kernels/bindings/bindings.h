// One function for each group of bindings; module.cpp calls them.
#pragma once

#include <nanobind/nanobind.h>

namespace dualpace {

void bind_attention_plan(nanobind::module_& module);
void bind_doorbell(nanobind::module_& module);
void bind_host_decoder(nanobind::module_& module);
void bind_linear(nanobind::module_& module);
void bind_paged_attention(nanobind::module_& module);
void bind_pinning(nanobind::module_& module);
void bind_stream_read(nanobind::module_& module);

}  // namespace dualpace
