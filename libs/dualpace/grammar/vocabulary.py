"""The vocabulary that grammars are compiled against: a model's tokens and its end tokens."""

from collections.abc import Callable

from llguidance import LLTokenizer

from dualpace.checkpoint import Checkpoint, end_token_ids
from dualpace.core.errors import CheckpointError, GrammarError

VocabularySource = Callable[[], LLTokenizer]
"""Loads a vocabulary, in about a second for a large one. Raises GrammarError."""


def vocabulary_of(checkpoint: Checkpoint) -> VocabularySource:
    """Return what loads a model's vocabulary: as many tokens as it has logits, or more."""

    def load() -> LLTokenizer:
        try:
            assets = checkpoint.tokenizer()
        except CheckpointError as error:
            raise GrammarError(f"grammars need the model's tokenizer: {error}") from None
        ends = end_token_ids(checkpoint.generation, assets)
        if not ends:
            raise GrammarError("the model has no end token, without which no grammar is complete")
        size = assets.tokenizer.get_vocab_size(with_added_tokens=True)
        return LLTokenizer(
            assets.tokenizer.to_str(),
            n_vocab=max(size, checkpoint.config.vocab_size),
            eos_token=list(ends),
        )

    return load
