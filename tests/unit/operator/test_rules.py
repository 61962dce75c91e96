"""Each rule says the same in CEL, which API servers evaluate, and in Python, which we do."""

import itertools
from collections.abc import Iterator
from typing import Any

import celpy
import pytest
from celpy.adapter import json_to_cel
from pydantic import ValidationError

from dualpace.operator.model.base import Rule, SpecModel
from dualpace.operator.model.profile import ProfileSpec, Topology
from dualpace.operator.model.service import (
    Arena,
    EnvVar,
    Model,
    Profiling,
    ServiceSpec,
    Window,
)


def subsets(**parts: Any) -> Iterator[dict[str, Any]]:
    for size in range(len(parts) + 1):
        for chosen in itertools.combinations(parts.items(), size):
            yield dict(chosen)


WINDOW = {"start": "02:00", "end": "04:00"}
EXAMPLES: dict[type[SpecModel], list[dict[str, Any]]] = {
    Model: list(
        subsets(
            claim={"name": "m"}, image={"reference": "r"}, hub={"repository": "a/b"},
            servedName="n",
        )
    ),
    EnvVar: [
        {"name": "A", **parts} for parts in subsets(value="", secret={"name": "s", "key": "k"})
    ],
    Profiling: [
        {"reprofile": policy, **parts}
        for policy in ("Window", "Anytime", "OnRequest")
        for parts in subsets(window=WINDOW)
    ],
    Window: [WINDOW, {"start": "04:00", "end": "04:00"}],
    Topology: [
        {"cpus": cpus, "threadsPerCore": threads, "numaNodes": nodes}
        for cpus, threads, nodes in itertools.product((1, 2, 3, 4, 8), (1, 2), (1, 2))
    ],
}  # fmt: skip


def models_with_rules() -> set[type[SpecModel]]:
    found: set[type[SpecModel]] = set()

    def visit(annotation: Any) -> None:
        if isinstance(annotation, type) and issubclass(annotation, SpecModel):
            if annotation.RULES:
                found.add(annotation)
            for field in annotation.model_fields.values():
                visit(field.annotation)
        for part in getattr(annotation, "__args__", ()):
            visit(part)

    visit(ServiceSpec)
    visit(ProfileSpec)
    return found


def test_every_model_with_rules_has_examples() -> None:
    # What only one side can say: quantities and uniqueness (Python), changes (CEL).
    assert models_with_rules() == set(EXAMPLES) | {Arena, ProfileSpec}


def says_cel(rule: Rule, example: dict[str, Any]) -> bool:
    assert rule.cel is not None
    environment = celpy.Environment()
    program = environment.program(environment.compile(rule.cel))
    return bool(program.evaluate({"self": json_to_cel(example)}))


def says_python(model: type[SpecModel], rule: Rule, example: dict[str, Any]) -> bool:
    try:
        model.model_validate(example)
    except ValidationError as error:
        return rule.message not in str(error)
    return True


@pytest.mark.parametrize("model", EXAMPLES, ids=lambda model: model.__name__)
def test_both_forms_agree(model: type[SpecModel]) -> None:
    for rule in model.RULES:
        verdicts = [(says_cel(rule, e), says_python(model, rule, e)) for e in EXAMPLES[model]]
        assert all(cel == python for cel, python in verdicts), rule.message
        assert {cel for cel, _ in verdicts} == {True, False}, rule.message


def test_identity_of_a_profile_cannot_change() -> None:
    rule = next(rule for rule in ProfileSpec.RULES if rule.cel is not None)
    assert rule.cel is not None
    environment = celpy.Environment()
    program = environment.program(environment.compile(rule.cel))
    before = {"nodeName": "a", "modelKey": "k"}
    for after, allowed in ((before, True), ({**before, "nodeName": "b"}, False)):
        facts = {"self": json_to_cel(after), "oldSelf": json_to_cel(before)}
        assert bool(program.evaluate(facts)) is allowed
