"""How long work takes, predicted from a profile. Seconds throughout.

One model for both sides of every comparison: schedulers ask it before they decide, the simulator
lets time pass by it. It knows stages and sizes, not requests.
"""

from dataclasses import dataclass
from functools import lru_cache

from dualpace.scheduling.plan import GpuPlan
from dualpace.scheduling.profile import Profile, StageTimes


@dataclass(frozen=True, slots=True)
class GpuWork:
    """What one iteration of a GPU computes."""

    rows: int = 0
    """Token rows of the dense stages: decodes and prompt tokens."""
    sampled_rows: int = 0
    decode_rows: int = 0
    kv_tokens: int = 0
    """Read by decodes, and by chunks from the chunks before them."""
    prefill_pairs: int = 0
    """Query-key pairs of prompt chunks."""


def chunk_pairs(start: int, count: int) -> int:
    """Return the query-key pairs of `count` prompt tokens behind `start` earlier ones."""
    return count * start + count * (count + 1) // 2


def work_of(plan: GpuPlan) -> GpuWork:
    """Return the size of a plan."""
    rows = sampled = decodes = kv_tokens = pairs = 0
    for row in plan.rows:
        count = len(row.tokens)
        rows += count
        kv_tokens += row.start
        if row.samples:
            sampled += 1
        if count == 1:
            decodes += 1
            kv_tokens += 1
        else:
            pairs += chunk_pairs(row.start, count)
    return GpuWork(rows, sampled, decodes, kv_tokens, pairs)


class EngineCosts:
    """Stage times of one engine."""

    def __init__(self, stages: StageTimes, num_layers: int) -> None:
        self._stages = stages
        self.num_layers = num_layers
        self.step_overhead_s = stages.step_overhead_ms / 1e3
        # Row counts repeat all the time; tables do not change.
        self.dense_layer_s = lru_cache(maxsize=8192)(self._dense_layer_s)
        self.head_s = lru_cache(maxsize=8192)(self._head_s)

    def pre_attention_s(self, rows: int) -> float:
        """Norm, QKV and RoPE of one layer."""
        return self._stages.pre_attention(rows) / 1e3

    def post_attention_s(self, rows: int) -> float:
        """O and feed-forward of one layer."""
        return self._stages.post_attention(rows) / 1e3

    def attention_layer_s(self, rows: int, kv_tokens: int) -> float:
        """Decode attention of one layer."""
        return self._stages.decode_attention(rows, kv_tokens) / 1e3

    def _dense_layer_s(self, rows: int) -> float:
        """Both dense stages of one layer."""
        return self.pre_attention_s(rows) + self.post_attention_s(rows)

    def _head_s(self, rows: int) -> float:
        """LM head and sampling."""
        return self._stages.head(rows) / 1e3


class GpuCosts(EngineCosts):
    """The GPU's iterations."""

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile.gpu, profile.model.num_layers)
        self._prefill = profile.gpu_prefill_attention

    def prefill_layer_s(self, pairs: int) -> float:
        """Prefill attention of one layer."""
        return self._prefill(pairs) / 1e3

    def layer_s(self, work: GpuWork) -> float:
        """One layer of an iteration."""
        return (
            self.dense_layer_s(work.rows)
            + self.attention_layer_s(max(1, work.decode_rows), work.kv_tokens)
            + self.prefill_layer_s(work.prefill_pairs)
        )

    def step_s(self, work: GpuWork) -> float:
        """One whole iteration."""
        layers = self.num_layers * self.layer_s(work)
        return self.step_overhead_s + layers + self.head_s(work.sampled_rows)


class HostCosts(EngineCosts):
    """The host's iterations without help."""

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile.host, profile.model.num_layers)

    def step_s(self, rows: int, kv_tokens: int) -> float:
        """One iteration with every stage on the CPU."""
        layer = self.dense_layer_s(rows) + self.attention_layer_s(rows, kv_tokens)
        return self.step_overhead_s + self.num_layers * layer + self.head_s(rows)


class LinkCosts:
    """What travels between device and host."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile

    def kv_to_host_s(self, tokens: int) -> float:
        """Copy the KV of `tokens` tokens out."""
        return self._profile.to_host(tokens * self._profile.model.kv_bytes_per_token) / 1e3

    def kv_to_device_s(self, tokens: int) -> float:
        """Copy the KV of `tokens` tokens in."""
        return self._profile.to_device(tokens * self._profile.model.kv_bytes_per_token) / 1e3

    def assist_down_s(self, rows: int) -> float:
        """Send Q, K and V of one layer to the host, doorbell included."""
        size = rows * self._profile.model.attention_input_bytes
        return (self._profile.to_host(size) + self._profile.assist_sync_ms) / 1e3

    def assist_up_s(self, rows: int) -> float:
        """Send attention's result of one layer to the device, doorbell included."""
        size = rows * self._profile.model.attention_output_bytes
        return (self._profile.to_device(size) + self._profile.assist_sync_ms) / 1e3


class NodeCosts:
    """All costs of a node."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.gpu = GpuCosts(profile)
        self.host = HostCosts(profile)
        self.link = LinkCosts(profile)
