"""What all models of custom resources share: camelCase, no unknown fields, rules written once.

A Rule is one sentence with two forms: CEL, which API servers of Kubernetes 1.25 and later evaluate
on every write, and Python, which the operator evaluates on every spec that it reads, for servers
without CEL. The generator of the CRDs emits the first; validation here runs the second.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.alias_generators import to_camel


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition across fields. `cel` sees the object as `self`, `holds` as its argument.

    `cel` is None where CEL cannot say it in every version that has CEL; `holds` is None for rules
    about a change, which need the old object.
    """

    cel: str | None
    message: str
    holds: Callable[[Any], bool] | None


class SpecModel(BaseModel):
    """Base of everything inside a custom resource."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True
    )

    RULES: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _check_rules(self) -> "SpecModel":
        for rule in self.RULES:
            if rule.holds is not None and not rule.holds(self):
                raise ValueError(rule.message)
        return self


def faults(error: ValidationError, root: str = "spec") -> Iterator[str]:
    """Yield each fault as `path: what is wrong`, in the words of the API server where it has any.

    Values are never repeated: a spec can hold what is no business of a log.
    """
    for detail in error.errors(include_url=False, include_input=False, include_context=False):
        path = root
        for part in detail["loc"]:
            path += f"[{part}]" if isinstance(part, int) else f".{part}"
        message = detail["msg"].removeprefix("Value error, ")
        yield f"{path}: {message[0].lower()}{message[1:]}"
