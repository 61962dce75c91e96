// The dense stages' kernels for AVX2, FMA and F16C. Compiled with flags of its own:
// include nothing else here.
#include "dualpace/vec/avx2.h"

#include "dualpace/dense_template.h"

namespace dualpace {

const DenseKernels kDenseKernelsAvx2 = dense_table<Avx2>();

}  // namespace dualpace
