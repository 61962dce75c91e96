// Decode attention's span kernels for AVX2, FMA and F16C. Compiled with flags of its own: include
// nothing else here.
#include "dualpace/vec/avx2.h"

#include "dualpace/span_template.h"

namespace dualpace {

const SpanKernels kSpanKernelsAvx2 = span_table<Avx2>();

}  // namespace dualpace
