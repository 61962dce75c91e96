"""A sub-batch under construction, with the predicted times that the decision weighs."""

from dualpace.core.sequence import Sequence
from dualpace.scheduling.baselines.neo.plan import NeoBatch
from dualpace.scheduling.baselines.neo.predictor import NeoPredictor


class BatchDraft:
    """Members, and predicted milliseconds a layer, kept in step as members come and go."""

    def __init__(self, predictor: NeoPredictor) -> None:
        self._predictor = predictor
        self.gprf: list[Sequence] = []
        self.cprf: list[Sequence] = []
        self.gdec: list[Sequence] = []
        self.cdec: list[Sequence] = []
        self.width = 0
        self._cpu_tokens = 0
        self.linr_ms = 0.0
        self.pref_ms = 0.0  # a running value, as in the original: the order of additions matters
        self.gdec_ms = 0.0
        self.cdec_ms = 0.0

    @property
    def rows(self) -> int:
        """Requests in it."""
        return len(self.gprf) + len(self.cprf) + len(self.gdec) + len(self.cdec)

    @property
    def gpu_ms(self) -> float:
        """GPU time of a layer."""
        return self.linr_ms + self.pref_ms + self.gdec_ms

    def fill(self, gprf: list[Sequence], cprf: list[Sequence], gdec: list[Sequence]) -> None:
        """Start with admitted prompts and the whole GPU queue."""
        for prompt in (*gprf, *cprf):
            self.width += prompt.num_tokens
            self.pref_ms += self._predictor.pref(prompt.num_tokens)
        self.gprf, self.cprf, self.gdec = list(gprf), list(cprf), list(gdec)
        self.width += len(gdec)
        self.gdec_ms = self._predictor.gdec(sum(s.num_tokens for s in gdec))
        self.linr_ms = self._predictor.linr(self.width)

    def pop_cpu_prompt(self) -> Sequence:
        """Take the newest prompt bound for the CPU out."""
        prompt = self.cprf.pop()
        self._prompt_changed(-prompt.num_tokens, -self._predictor.pref(prompt.num_tokens))
        return prompt

    def put_back(self, prompt: Sequence) -> None:
        """Undo `pop_cpu_prompt`."""
        self.cprf.append(prompt)
        self._prompt_changed(prompt.num_tokens, self._predictor.pref(prompt.num_tokens))

    def add_cpu_decode(self, decode: Sequence) -> None:
        """Add a decode whose attention runs on the CPU."""
        self.cdec.append(decode)
        self._cpu_decodes_changed(1, decode.num_tokens)

    def pop_cpu_decode(self) -> None:
        """Undo the last `add_cpu_decode`."""
        decode = self.cdec.pop()
        self._cpu_decodes_changed(-1, -decode.num_tokens)

    def finished(self) -> NeoBatch:
        """Return it as a value."""
        return NeoBatch(tuple(self.gprf), tuple(self.cprf), tuple(self.gdec), tuple(self.cdec))

    def _prompt_changed(self, width: int, pref_ms: float) -> None:
        self.width += width
        self.pref_ms += pref_ms
        self.linr_ms = self._predictor.linr(self.width)

    def _cpu_decodes_changed(self, width: int, tokens: int) -> None:
        self.width += width
        self._cpu_tokens += tokens
        self.linr_ms = self._predictor.linr(self.width)
        self.cdec_ms = self._predictor.cdec(len(self.cdec), self._cpu_tokens)


def slack_ms(batch: BatchDraft, other: BatchDraft, launch_ms: float) -> float:
    """How much longer the GPU works on the other batch than the CPU on this one, a layer."""
    return other.linr_ms + batch.pref_ms + batch.gdec_ms - (batch.cdec_ms + launch_ms)
