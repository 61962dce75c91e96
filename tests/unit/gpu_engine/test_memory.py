"""Pool sizes, the longest request, and what limits it."""

from pathlib import Path

import pytest
import torch

from dualpace.checkpoint import ModelConfig, open_checkpoint
from dualpace.core.errors import CapacityError, SettingsError
from dualpace.gpu_engine.memory import plan_memory
from dualpace.gpu_engine.settings import GpuEngineSettings
from dualpace.ipc.layout import layout_of
from dualpace.testing.gold import tiny_model


def make_settings(tmp_path: Path, **changes: object) -> GpuEngineSettings:
    return GpuEngineSettings(model="m", run_dir=str(tmp_path), **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return open_checkpoint(tiny_model("qwen3")).config  # 3 layers, 2 KV heads of 48, 1024 positions


BLOCK_BYTES = 2 * 3 * 2 * 48 * 4 * 16


@pytest.mark.parametrize(
    ("changes", "free", "limit", "limited_by"),
    [
        ({}, 512 << 20, 1024, "the model"),
        ({}, 10 * BLOCK_BYTES, 160, "device_kv_mib"),
        ({"max_model_len": 100}, 512 << 20, 100, "max_model_len"),
        ({"device_kv_mib": 1}, 512 << 20, (1 << 20) // BLOCK_BYTES * 16, "device_kv_mib"),
    ],
)
def test_the_shortest_limit_holds(
    tmp_path: Path,
    config: ModelConfig,
    changes: dict[str, object],
    free: int,
    limit: int,
    limited_by: str,
) -> None:
    plan = plan_memory(make_settings(tmp_path, **changes), config, torch.float32, free)
    assert (plan.max_model_len, plan.limited_by) == (limit, limited_by)
    assert layout_of(plan.arena).total_bytes <= 1024 << 20
    assert plan.arena.max_blocks_per_sequence * 16 >= plan.max_model_len
    assert f"up to {limit} tokens (limited by {limited_by})" in str(plan)


def test_a_small_arena_limits_too(tmp_path: Path, config: ModelConfig) -> None:
    plan = plan_memory(make_settings(tmp_path, arena_mib=4), config, torch.float32, 512 << 20)
    assert plan.limited_by == "arena_mib"
    assert plan.max_model_len == plan.arena.num_blocks * 16


def test_no_room_for_a_block_is_said(tmp_path: Path, config: ModelConfig) -> None:
    with pytest.raises(CapacityError, match="device_kv_mib: 0 MiB hold no KV block of"):
        plan_memory(make_settings(tmp_path), config, torch.float32, 1000)
    with pytest.raises(CapacityError, match="arena_mib: 1 MiB hold no KV block"):
        plan_memory(make_settings(tmp_path, arena_mib=1), config, torch.float32, 512 << 20)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"device": "tpu"}, "device: 'tpu' is not cpu, cuda, cuda:<index> or emulated:<what>"),
        ({"device": "cuda:x"}, "device: 'cuda:x'"),
        ({"block_size": 8}, "block_size must be a positive multiple of 16"),
        ({"max_running": 64, "token_budget": 32}, "token_budget 32 is below max_running 64"),
        ({"arena_mib": 0}, "arena_mib must be positive"),
        ({"threads": -1}, "threads must not be negative"),
        ({"max_model_len": 1}, "max_model_len must be greater than 1"),
        ({"gpu_memory_fraction": 1.5}, "gpu_memory_fraction"),
        ({"run_dir": "/nowhere"}, "run_dir: /nowhere is not a directory"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        GpuEngineSettings(**{"model": "m", "run_dir": str(tmp_path), **changes})  # type: ignore[arg-type]
