"""Profile documents: complete both ways, and refused with the path at fault."""

import copy
import json
from typing import Any

import pytest

from dualpace.core.errors import ProfileError
from dualpace.scheduling.presets import preset_profile
from dualpace.scheduling.profile_json import profile_from_json, profile_to_json

DOCUMENT = profile_to_json(preset_profile("rtx-4090", "xeon-4510-120", "llama-3.1-8b"))


def test_a_profile_survives_the_way_through_a_file() -> None:
    text = json.dumps(DOCUMENT)
    profile = profile_from_json(json.loads(text))
    assert profile == preset_profile("rtx-4090", "xeon-4510-120", "llama-3.1-8b")
    assert profile_to_json(profile) == json.loads(text)


def test_what_a_person_may_ask_about_a_measurement_survives() -> None:
    document = copy.deepcopy(DOCUMENT)
    document["sources"] |= {"host": "measured", "gpu": "measured on cpu"}
    document["evidence"] = {"measured_at": "2026-11-29", "spread": {"host": [0.01, None, "x"]}}
    assert profile_to_json(profile_from_json(document)) == document


def every_path(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all objects, and of the first items of lists."""
    paths = [path] if path else []
    if isinstance(node, dict):
        for key, value in node.items():
            paths += every_path(value, (*path, key))
    elif isinstance(node, list) and node:
        paths += every_path(node[0], (*path, 0))
    return paths


PATHS = [p for p in every_path(DOCUMENT) if p[-1] != 0]


@pytest.mark.parametrize("path", PATHS, ids=[".".join(map(str, p)) for p in PATHS])
def test_nothing_may_be_missing_or_of_another_kind(path: tuple[Any, ...]) -> None:
    missing, replaced = copy.deepcopy(DOCUMENT), copy.deepcopy(DOCUMENT)
    holder = missing
    for key in path[:-1]:
        holder = holder[key]
    del holder[path[-1]]
    with pytest.raises(ProfileError, match=path[-1]):
        profile_from_json(missing)
    holder = replaced
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = None
    with pytest.raises(ProfileError, match=path[-1]):
        profile_from_json(replaced)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format",), "dualpace-profile/2", "is not 'dualpace-profile/1'"),
        (("origin",), "guessed", "not one of measured, roofline"),
        (("gpu", "head", "rows", 1), 1, r"profile\.gpu\.head\.rows: must rise strictly"),
        (("gpu", "head", "rows", 0), 0, "above zero"),
        (("host", "head", "ms", 2), -1.0, r"profile\.host\.head\.ms\[2\]: -1\.0 is not above"),
        (("host", "head", "ms", 2), True, "a finite number is needed"),
        (("host", "head", "ms", 2), float("nan"), "a finite number is needed"),
        (("gpu", "decode_attention", "ms", 1, 3), 0, r"ms\[1\]\[3\]"),
        (("model", "num_layers"), 3.5, "a whole number"),
        (("assist", "sync_ms"), -0.1, "is negative"),
        (("sources", "gpu"), "guessed", "not one of measured, measured on cpu, estimated"),
        (("evidence",), [], "an object is needed"),
    ],
)
def test_wrong_values_are_named(path: tuple[Any, ...], value: Any, message: str) -> None:
    document = copy.deepcopy(DOCUMENT)
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    with pytest.raises(ProfileError, match=message):
        profile_from_json(document)


def test_unknown_keys_and_short_tables_are_refused() -> None:
    document = copy.deepcopy(DOCUMENT)
    document["gpu"]["head"]["unit"] = "s"
    with pytest.raises(ProfileError, match=r"profile\.gpu\.head\.unit: is unknown"):
        profile_from_json(document)
    document = copy.deepcopy(DOCUMENT)
    document["gpu"]["decode_attention"]["ms"].pop()
    with pytest.raises(ProfileError, match=r"decode_attention\.ms: 3 rows of times are needed"):
        profile_from_json(document)
    with pytest.raises(ProfileError, match="profile: an object is needed"):
        profile_from_json([])
