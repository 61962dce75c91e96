"""At which sizes a node is measured. Pure.

Powers of two, since costs bend where caches end and kernels change, and lie on lines in between.
A grid's KV tokens are those of all rows together, spread evenly, so every row has at least one.
"""

from dataclasses import dataclass

MAX_PAIRS_TOKENS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Knots:
    """Sizes to measure at, each rising."""

    rows: tuple[int, ...]
    """Of dense stages."""
    grid_rows: tuple[int, ...]
    kv_tokens: tuple[int, ...]
    """The least is no less than the most of `grid_rows`."""
    prefills: tuple[tuple[int, int], ...]
    """Chunks of prompts: tokens, and tokens before them; by rising query-key pairs."""
    sizes: tuple[int, ...]
    """Bytes to copy."""
    linear_rows: tuple[int, ...]
    steps: tuple[tuple[int, int], ...]
    """Rows and KV tokens of whole iterations, to check the tables by."""

    def cut(self, most_kv_tokens: int) -> "Knots":
        """Return what fits memory for so many KV tokens. At least the first knots stay."""
        fits = tuple(n for n in self.kv_tokens if n <= most_kv_tokens) or self.kv_tokens[:1]
        most = fits[-1]
        return Knots(
            rows=self.rows,
            grid_rows=self.grid_rows,
            kv_tokens=fits,
            prefills=tuple(p for p in self.prefills if sum(p) <= most) or self.prefills[:1],
            sizes=self.sizes,
            linear_rows=self.linear_rows,
            steps=tuple(s for s in self.steps if s[1] <= most) or ((1, most),),
        )


def _powers(first: int, last: int, step: int = 1) -> tuple[int, ...]:
    return tuple(1 << i for i in range(first, last + 1, step))


QUICK_KNOTS = Knots(
    rows=(1, 4, 16, 64, 256),
    grid_rows=(1, 8, 64),
    kv_tokens=(64, 512, 4096, 32768),
    prefills=((16, 0), (64, 0), (256, 0), (256, 768), (512, 1536)),
    sizes=_powers(10, 26, 4),
    linear_rows=(1, 64),
    steps=((1, 512), (16, 4096), (64, 32768)),
)
"""For a first look."""

THOROUGH_KNOTS = Knots(
    rows=(1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024),
    grid_rows=(1, 4, 16, 64, 256),
    kv_tokens=_powers(8, 18),
    prefills=(
        *((16, 0), (64, 0), (256, 0), (512, 0), (1024, 0), (2048, 0)),
        *((1024, 3072), (1024, 7168)),
    ),
    sizes=_powers(10, 28),
    linear_rows=(1, 4, 16, 64, 256, 1024),
    steps=((1, 512), (1, 8192), (8, 8192), (32, 32768), (64, 65536), (256, 262144)),
)


def pairs(tokens: int, start: int) -> int:
    """Return the query-key pairs of a chunk: what prefill attention is measured against."""
    return tokens * start + tokens * (tokens + 1) // 2


def lengths(rows: int, kv_tokens: int) -> list[int]:
    """Spread KV tokens over rows as evenly as can be; at least one each."""
    assert kv_tokens >= rows > 0
    each, rest = divmod(kv_tokens, rows)
    return [each + (row < rest) for row in range(rows)]
