// The dense stages' kernels for any processor. Compiled with flags of its own:
// include nothing else here.
#include "dualpace/vec/generic.h"

#include "dualpace/dense_template.h"

namespace dualpace {

const DenseKernels kDenseKernelsGeneric = dense_table<Generic>();

}  // namespace dualpace
