"""A request together with the tokens known so far."""

from dataclasses import dataclass, field

from dualpace.core.request import FinishReason, Request


@dataclass(slots=True, eq=False)
class Sequence:
    """Token ids of one request: the prompt, then what was generated."""

    request: Request
    tokens: list[int] = field(default_factory=list)

    @property
    def request_id(self) -> int:
        """The request's id."""
        return self.request.request_id

    @property
    def gateway_id(self) -> int:
        """The gateway that gets the tokens."""
        return self.request.gateway_id

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens known so far."""
        return len(self.tokens)

    @property
    def age_key(self) -> tuple[int, float, int]:
        """Orders sequences, the most urgent first, then the oldest."""
        return self.request.rank

    def append(self, token_id: int) -> FinishReason | None:
        """Add a generated token; return why the sequence ends with it, if it does."""
        self.tokens.append(token_id)
        return self.request.finish_reason(len(self.tokens), token_id)
