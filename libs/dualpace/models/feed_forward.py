"""Feed-forward parts of a layer: a gated MLP, and a mixture of such."""

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from dualpace.checkpoint import Activation, MoeConfig
from dualpace.models.linear import Linear

_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.SILU: functional.silu,
    Activation.GELU: functional.gelu,
    Activation.GELU_TANH: functools.partial(functional.gelu, approximate="tanh"),
}


class GatedMlp:
    """down(activation(gate(x)) * up(x)), gate and up being one product."""

    def __init__(self, gate_up: Linear, down: Linear, activation: Activation) -> None:
        self.gate_up = gate_up
        self.down = down
        self.activation = activation

    def __call__(self, x: Tensor) -> Tensor:
        """Map [T, hidden] to [T, hidden]."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(_ACTIVATIONS[self.activation](gate) * up)


class MixtureOfExperts:
    """Each token goes through its best experts; their outputs are added, weighted by the router."""

    def __init__(self, router: Linear, experts: Sequence[GatedMlp], config: MoeConfig) -> None:
        self._router = router
        self.experts = experts
        self._config = config

    def __call__(self, x: Tensor) -> Tensor:
        """Map [T, hidden] to [T, hidden]."""
        probabilities = self._router(x).softmax(dim=-1, dtype=torch.float32)
        weights, chosen = probabilities.topk(self._config.top_k, dim=-1)
        if self._config.renormalise:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        output = torch.zeros_like(x)
        for expert in torch.unique(chosen).tolist():
            tokens, ranks = (chosen == expert).nonzero(as_tuple=True)
            contribution = self.experts[expert](x[tokens]) * weights[tokens, ranks, None]
            output.index_add_(0, tokens, contribution.to(x.dtype))
        return output
