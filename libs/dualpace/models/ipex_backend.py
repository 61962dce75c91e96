"""Linear maps and decode attention of intel-extension-for-pytorch, for hosts that still run it.

Its last release is 2.8 and needs torch 2.8; it has reached its end of life. Nothing is imported
from it before an engine asks for it.
"""

import importlib
import logging
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from dualpace.core.errors import SettingsError
from dualpace.models.linear import Linear
from dualpace.models.torch_attention import TorchPagedAttention

log = logging.getLogger(__name__)

_PACKAGE = "intel_extension_for_pytorch"


def load_ipex() -> ModuleType:
    """Import the package. Raises SettingsError that says why it cannot be used."""
    try:
        ipex = importlib.import_module(_PACKAGE)
    # Beside another torch it calls a function that does not exist, in order to end the process.
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        raise SettingsError(
            "backend=ipex: intel-extension-for-pytorch 2.8 cannot be imported beside torch"
            f" {torch.__version__} ({error}); it needs torch 2.8, see the [ipex] extra"
        ) from error
    log.warning(
        "backend=ipex: intel-extension-for-pytorch %s has reached its end of life; the native"
        " kernels are the default",
        ipex.__version__,
    )
    return ipex


class IpexLinearFactory:
    """A `LinearFactory` whose weights the package packs for its matrix products."""

    def __init__(self, ipex: ModuleType) -> None:
        self._ipex: Any = ipex

    def __call__(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """Pack weight [out, in] and bias [out]; see LinearFactory.

        Raises SettingsError where the package packs no weights of that dtype on this processor.
        """
        outputs, inputs = weight.shape
        linear = nn.Linear(inputs, outputs, bias=bias is not None, device="meta")
        linear.weight = nn.Parameter(weight, requires_grad=False)
        if bias is not None:
            linear.bias = nn.Parameter(bias.to(weight.dtype), requires_grad=False)
        # It packs the parts of a module, not the module itself.
        module = nn.Sequential(linear).eval()
        try:
            packed: Linear = self._ipex.optimize(
                module,
                dtype=weight.dtype,
                weights_prepack=True,
                inplace=True,
                conv_bn_folding=False,
                linear_bn_folding=False,
            )
        except (AssertionError, RuntimeError) as error:
            dtype = str(weight.dtype).removeprefix("torch.")
            raise SettingsError(
                f"backend=ipex cannot pack {dtype} weights here: {error}"
            ) from error
        return packed


class IpexPagedAttention(TorchPagedAttention):
    """`PagedAttention` whose decode is the package's, over the pool's blocks as they lie."""

    def __init__(self, ipex: ModuleType) -> None:
        self._kernel: Any = ipex.llm.modules.PagedAttention

    def decode(
        self,
        q: Tensor,
        kv_layer: Tensor,
        block_tables: Tensor,
        rows: Tensor,
        lengths: Tensor,
        *,
        scale: float,
        window: int | None,
    ) -> Tensor:
        """See PagedAttention.decode."""
        kv_heads, block_size = kv_layer.shape[2:4]
        query = q.to(kv_layer.dtype).contiguous()
        out = torch.zeros_like(query)
        attended = torch.nonzero(lengths).flatten()
        if len(attended) == 0:
            return out.to(q.dtype)
        part = torch.empty_like(query[attended])
        heads = torch.arange(kv_heads, dtype=torch.int32)
        self._kernel.single_query_cached_kv_attention(
            part,
            query[attended],
            kv_layer[:, 0],
            kv_layer[:, 1],
            heads.repeat_interleave(q.shape[1] // kv_heads),
            scale,
            block_tables[rows[attended].long()].contiguous(),
            lengths[attended].contiguous(),
            block_size,
            int(lengths.max()),
            None,
            -1 if window is None else window,
        )
        out[attended] = part
        return out.to(q.dtype)
