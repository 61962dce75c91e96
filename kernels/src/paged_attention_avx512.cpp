// Decode attention's span kernels for AVX-512 F, BW, DQ and VL. Compiled with flags of its own:
// include nothing else here.
#include "dualpace/vec/avx512.h"

#include "dualpace/span_template.h"

namespace dualpace {

const SpanKernels kSpanKernelsAvx512 = span_table<Avx512>();

}  // namespace dualpace
