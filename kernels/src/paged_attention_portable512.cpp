// The logic of the AVX-512 span kernels on any processor, for tests. Compiled with flags of its
// own: include nothing else here.
#include "dualpace/vec/portable512.h"

#include "dualpace/span_template.h"

namespace dualpace {

const SpanKernels kSpanKernelsPortable512 = span_table<Portable512>();

}  // namespace dualpace
