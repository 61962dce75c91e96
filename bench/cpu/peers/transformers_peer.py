"""Times transformers' generate: greedy, all sequences in one batch, from token 1 to the last."""

from time import perf_counter

import torch
from cpu.cells import Cell, peer_arguments, report
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList


class Clock(StoppingCriteria):  # type: ignore[misc]
    """Notes when each token was there; stops nothing."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(  # noqa: D102 - see StoppingCriteria
        self,
        input_ids: torch.Tensor,
        scores: torch.Tensor,  # noqa: ARG002
        **unused: object,  # noqa: ARG002
    ) -> torch.Tensor:
        self.times.append(perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool)


def main() -> None:
    """Measure the cells."""
    arguments = peer_arguments(("float32", "bfloat16"))
    torch.set_num_threads(arguments.threads)
    dtype = getattr(torch, arguments.format)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=dtype).eval()
    model.generation_config.eos_token_id = None

    @torch.inference_mode()
    def measure(cell: Cell) -> tuple[list[float], None]:
        ids = torch.randint(10, 30000, (cell.batch, cell.context))
        speeds = []
        for _ in range(arguments.repeats):
            clock = Clock()
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=arguments.tokens + 1,
                min_new_tokens=arguments.tokens + 1,
                do_sample=False,
                pad_token_id=0,
                stopping_criteria=StoppingCriteriaList([clock]),
            )
            speeds.append(cell.batch * arguments.tokens / (clock.times[-1] - clock.times[0]))
        return speeds, None

    report("transformers", arguments, measure)


main()
