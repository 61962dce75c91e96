// Products and attention on the processor's tiles (AMX), with AVX-512 beside them. Compiled with
// flags of its own: include nothing else here.
#include "dualpace/tile/amx.h"
#include "dualpace/vec/avx512.h"

#include "dualpace/tile_template.h"

namespace dualpace {

const TileKernels kTileKernelsAmx = tile_table<Avx512, AmxTiles>();

}  // namespace dualpace
