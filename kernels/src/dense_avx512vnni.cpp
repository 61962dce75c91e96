// The dense stages' kernels for AVX-512 and its sums of products of whole numbers. Compiled with
// flags of its own: include nothing else here.
#include "dualpace/vec/avx512vnni.h"

#include "dualpace/dense_template.h"

namespace dualpace {

const DenseKernels kDenseKernelsAvx512Vnni = dense_table<Avx512Vnni>();

}  // namespace dualpace
