"""NEO's settings, under its own names where they are terms of the field."""

from dataclasses import dataclass

SHIPPED_LAUNCH_MS = 0.8
"""The launch term that its code adds to the CPU's time of every layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeoConfig:
    """Bounds, and two switches that select other policies of the same code."""

    block_size: int
    num_gpu_blocks: int
    num_cpu_blocks: int
    max_batch_size: int
    """Rows of an iteration, over both batches."""
    max_tokens_in_batch: int
    """Tokens of an iteration: a prompt counts its length, a decode one."""
    max_seqs_in_block_table: int
    """Requests that hold an id at once."""
    num_layers: int
    max_blocks_per_seq: int = 512
    """Shapes the knots of its CPU attention table only."""
    launch_ms: float = SHIPPED_LAUNCH_MS
    disable_partial_offl: bool = False
    """Every decode on the CPU, in the manner of FastDecode."""
    always_use_gpu: bool = False
    """A simpler routine that keeps decodes on the GPU and swaps."""

    @property
    def resident_blocks(self) -> int:
        """Blocks that decodes may hold on the GPU."""
        return 0 if self.disable_partial_offl else self.num_gpu_blocks

    @property
    def swap_in_blocks(self) -> int:
        """Blocks in use on the GPU up to which requests are swapped in; halves round to even."""
        return round(self.resident_blocks * 0.95)

    @property
    def bounce_blocks(self) -> int:
        """Blocks of the one-layer buffer through which prompts bound for the CPU pass."""
        return self.num_gpu_blocks

    @property
    def admission_cpu_blocks(self) -> int:
        """CPU blocks up to which prompts are admitted."""
        return self.num_cpu_blocks - self.num_gpu_blocks
