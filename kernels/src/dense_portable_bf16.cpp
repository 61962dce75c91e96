// The logic of the AVX-512 bfloat16 dense kernels on any processor, for tests. Compiled with flags
// of its own: include nothing else here.
#include "dualpace/vec/portable_bf16.h"

#include "dualpace/dense_template.h"

namespace dualpace {

const DenseKernels kDenseKernelsPortableBf16 = dense_table<PortableBf16>();

}  // namespace dualpace
