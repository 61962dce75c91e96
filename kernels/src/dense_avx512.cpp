// The dense stages' kernels for AVX-512 F, BW, DQ and VL. Compiled with flags of its own:
// include nothing else here.
#include "dualpace/vec/avx512.h"

#include "dualpace/dense_template.h"

namespace dualpace {

const DenseKernels kDenseKernelsAvx512 = dense_table<Avx512>();

}  // namespace dualpace
