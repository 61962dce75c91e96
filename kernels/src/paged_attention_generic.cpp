// Decode attention's span kernels for any processor. Compiled with flags of its own: include
// nothing else here.
#include "dualpace/vec/generic.h"

#include "dualpace/span_template.h"

namespace dualpace {

const SpanKernels kSpanKernelsGeneric = span_table<Generic>();

}  // namespace dualpace
