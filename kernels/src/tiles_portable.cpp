// The logic of products and attention on tiles, on any processor, for tests. Compiled with flags of
// its own: include nothing else here.
#include "dualpace/tile/portable.h"
#include "dualpace/vec/portable512.h"

#include "dualpace/tile_template.h"

namespace dualpace {

const TileKernels kTileKernelsPortable = tile_table<Portable512, PortableTiles>();

}  // namespace dualpace
