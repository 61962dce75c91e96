// The logic of the AVX-512 dense kernels on any processor, for tests. Compiled with flags of its
// own: include nothing else here.
#include "dualpace/vec/portable512.h"

#include "dualpace/dense_template.h"

namespace dualpace {

const DenseKernels kDenseKernelsPortable512 = dense_table<Portable512>();

}  // namespace dualpace
