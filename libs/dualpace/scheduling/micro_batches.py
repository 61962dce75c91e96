"""Splitting a host batch so that the CPU attends to one part while the GPU has another."""

from collections.abc import Sequence


def balanced_split(kv_tokens: Sequence[int], parts: int) -> tuple[int, ...]:
    """Return how many neighbouring rows go to each part, by KV tokens as even as rows allow.

    Attention's time follows KV tokens, so even parts keep the CPU busy throughout. Fewer parts come
    back when there are fewer rows.
    """
    assert parts > 0
    parts = min(parts, len(kv_tokens))
    if parts <= 1:
        return (len(kv_tokens),) if kv_tokens else ()
    total = sum(kv_tokens)
    sizes: list[int] = []
    taken = begun = 0
    for index, tokens in enumerate(kv_tokens):
        left = parts - len(sizes) - 1
        taken += tokens
        if not left:
            break
        # Nearer to an even share than with the next row too.
        full = 2 * taken + kv_tokens[index + 1] > 2 * total * (len(sizes) + 1) / parts
        if full or len(kv_tokens) - index - 1 == left:
            sizes.append(index + 1 - begun)
            begun = index + 1
    sizes.append(len(kv_tokens) - begun)
    return tuple(sizes)
