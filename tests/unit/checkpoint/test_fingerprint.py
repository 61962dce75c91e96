"""The identity of a model."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dualpace.checkpoint import open_checkpoint
from dualpace.testing.gold import tiny_model, tiny_model_names


def copy(tmp_path: Path) -> Path:
    target = tmp_path / "copy"
    shutil.copytree(tiny_model("mistral"), target)
    return target


def test_copies_agree(tmp_path: Path) -> None:
    assert (
        open_checkpoint(copy(tmp_path)).fingerprint
        == open_checkpoint(tiny_model("mistral")).fingerprint
    )


def test_models_differ() -> None:
    found = {open_checkpoint(tiny_model(name)).fingerprint for name in tiny_model_names()}
    assert len(found) == len(tiny_model_names())
    assert all(len(fingerprint) == 32 for fingerprint in found)


@pytest.mark.parametrize("field", ["rope_theta", "sliding_window", "rms_norm_eps"])
def test_a_config_that_computes_something_else_differs(field: str, tmp_path: Path) -> None:
    directory = copy(tmp_path)
    config = json.loads((directory / "config.json").read_text())
    config[field] *= 2
    (directory / "config.json").write_text(json.dumps(config))
    assert (
        open_checkpoint(directory).fingerprint != open_checkpoint(tiny_model("mistral")).fingerprint
    )


def test_weights_of_another_training_run_differ(tmp_path: Path) -> None:
    directory = copy(tmp_path)
    path = directory / "model.safetensors"
    data = bytearray(path.read_bytes())
    # The last tensor by name is a sampled one; its first bytes change.
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    begin, _ = header["model.norm.weight"]["data_offsets"]
    data[8 + int.from_bytes(data[:8], "little") + begin] ^= 1
    path.write_bytes(data)
    assert (
        open_checkpoint(directory).fingerprint != open_checkpoint(tiny_model("mistral")).fingerprint
    )


def test_the_package_needs_no_torch() -> None:
    code = "import sys, dualpace.checkpoint; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
