// The dense stages' kernels for AVX-512 and its bfloat16 arithmetic. Compiled with flags of its
// own: include nothing else here.
#include "dualpace/vec/avx512bf16.h"

#include "dualpace/dense_template.h"

namespace dualpace {

const DenseKernels kDenseKernelsAvx512Bf16 = dense_table<Avx512Bf16>();

}  // namespace dualpace
