"""Sampling defaults and end tokens."""

from typing import Any

import pytest

from dualpace.checkpoint import GenerationDefaults, open_checkpoint
from dualpace.core.errors import CheckpointError

MakeDirectory = Any


def defaults(make_directory: MakeDirectory, config: Any = None, **files: Any) -> GenerationDefaults:
    return open_checkpoint(make_directory(config, **files)).generation


def test_values_are_taken_as_given(make_directory: MakeDirectory) -> None:
    given = {
        "eos_token_id": [151645, 151643],
        "temperature": 0.7,
        "top_p": 0.8,
        "top_k": 20,
        "min_p": 0.05,
        "do_sample": True,
    }
    assert defaults(make_directory, generation_config__json=given) == GenerationDefaults(
        eos_token_ids=(151645, 151643), temperature=0.7, top_p=0.8, top_k=20, min_p=0.05
    )


def test_absent_values_are_none(make_directory: MakeDirectory) -> None:
    found = defaults(make_directory, generation_config__json={"eos_token_id": 7})
    assert found == GenerationDefaults(eos_token_ids=(7,))
    assert found.temperature is None


def test_end_tokens_fall_back_to_the_model_config(make_directory: MakeDirectory) -> None:
    assert defaults(make_directory).eos_token_ids == (2,)
    assert defaults(make_directory, {"eos_token_id": [3, 4]}).eos_token_ids == (3, 4)
    assert defaults(make_directory, {"eos_token_id": None}).eos_token_ids == ()
    without = defaults(make_directory, generation_config__json={"eos_token_id": None})
    assert without.eos_token_ids == (2,)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"eos_token_id": "2"}, "'eos_token_id' is '2'"),
        ({"eos_token_id": [2, True]}, "a token id or a list of token ids"),
        ({"eos_token_id": -1}, "'eos_token_id' is -1"),
        ({"temperature": "warm"}, "'temperature' is 'warm'"),
        ({"temperature": -0.5}, "'temperature' is -0.5"),
        ({"top_p": 1.5}, "'top_p' is 1.5 .*at most 1"),
        ({"top_k": 2.5}, "'top_k' is 2.5"),
        ({"min_p": True}, "'min_p' is True"),
    ],
)
def test_errors_name_the_field(
    values: dict[str, Any], message: str, make_directory: MakeDirectory
) -> None:
    with pytest.raises(CheckpointError, match=rf"generation_config\.json.*{message}"):
        defaults(make_directory, generation_config__json=values)
