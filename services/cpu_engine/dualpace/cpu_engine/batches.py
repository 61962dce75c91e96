"""Rows of a plan as arrays."""

from collections.abc import Sequence

import numpy as np

from dualpace.models.host_step import DecodeBatch
from dualpace.sampling.row_sampler import takes_greatest
from dualpace.scheduling.plan import HostRow


def decode_batch(rows: Sequence[HostRow]) -> DecodeBatch:
    """Return the rows' tokens, slots and lengths, and whether their logits are wanted."""
    return DecodeBatch(
        token_ids=np.fromiter((row.token_id for row in rows), np.int64, len(rows)),
        rows=np.fromiter((row.slot for row in rows), np.int32, len(rows)),
        lengths=np.fromiter((row.position + 1 for row in rows), np.int32, len(rows)),
        wanted=np.fromiter(
            (not takes_greatest(row.request.sampling) for row in rows), np.bool_, len(rows)
        ),
    )
