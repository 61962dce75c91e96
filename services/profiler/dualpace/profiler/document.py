"""From results by name to a profile: the tables that routing reads, and the evidence for them.

Pure. Each part says where its numbers come from; an estimate is never passed off as a measurement.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dualpace.checkpoint import ModelConfig
from dualpace.profiler.knots import Knots, pairs
from dualpace.profiler.timing import Summary
from dualpace.profiles import estimated_profile
from dualpace.scheduling.cost import EngineCosts
from dualpace.scheduling.curves import Curve, Grid
from dualpace.scheduling.profile import ModelShape, Origin, Profile, Source, Sources, StageTimes

Results = Mapping[str, Summary]

SYNC = "assist/sync"
"""Key of one direction of an empty assist call."""
_SYNC_US = 30.0
"""A doorbell and a stream's synchronisation, one way, where nobody measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a sweep has found out, and on what."""

    results: Results
    knots: Knots
    model: ModelShape
    config: ModelConfig
    device: Source
    preset: str | None
    """The GPU preset, where the device is estimated."""
    gpu_name: str
    host_name: str
    hardware_fingerprint: str


def model_shape(config: ModelConfig, name: str, fingerprint: str, element_bytes: int) -> ModelShape:
    """Return what the cost model has to know of a model whose values take so many bytes."""
    row = config.head_dim * element_bytes
    return ModelShape(
        name=name,
        fingerprint=fingerprint,
        num_layers=config.num_layers,
        kv_bytes_per_token=config.kv_bytes_per_token(element_bytes),
        attention_input_bytes=(config.num_heads + 2 * config.num_kv_heads) * row,
        attention_output_bytes=config.num_heads * row,
    )


def build_profile(measured: Measured, evidence: Mapping[str, Any]) -> Profile:
    """Return the profile, without thresholds."""
    host = _stages(measured, "host")
    if measured.preset is not None:
        gpu = estimated_profile(
            measured.preset, measured.config, measured.model.name, assist_sync_us=_SYNC_US
        )
        device, prefill, origin = gpu.gpu, gpu.gpu_prefill_attention, Origin.ROOFLINE
        to_host, to_device = gpu.to_host, gpu.to_device
    else:
        device = _stages(measured, "gpu")
        prefill, origin = _prefill(measured), Origin.MEASURED
        sizes, results = measured.knots.sizes, measured.results
        to_host = _curve(results, "to_host/{}", sizes)
        to_device = _curve(results, "to_device/{}", sizes)
    sync = measured.results.get(SYNC)
    return Profile(
        origin=origin,
        gpu_name=measured.gpu_name,
        host_name=measured.host_name,
        hardware_fingerprint=measured.hardware_fingerprint,
        model=measured.model,
        gpu=device,
        gpu_prefill_attention=prefill,
        host=host,
        to_host=to_host,
        to_device=to_device,
        assist_sync_ms=_SYNC_US / 1e3 if sync is None else _rounded(sync.ms),
        sources=Sources(
            gpu=measured.device,
            host=Source.MEASURED,
            transfers=measured.device,
            assist=Source.ESTIMATED if sync is None else measured.device,
        ),
        evidence=evidence,
    )


def cells_evidence(measured: Measured) -> dict[str, Any]:
    """Return every result with its spread, and how well the tables add up to whole iterations."""
    return {
        "cells": {
            key: [_rounded(r.ms), round(r.spread, 4), r.samples, r.disturbed]
            for key, r in measured.results.items()
        },
        "unstable": [key for key, r in measured.results.items() if not r.stable],
        "steps": [
            check for prefix in _measured_sides(measured) for check in _steps(measured, prefix)
        ],
    }


def _measured_sides(measured: Measured) -> Iterable[str]:
    """Return the prefixes of the sides that were measured; an estimated GPU was not."""
    return ("host",) if measured.preset is not None else ("host", "gpu")


def _steps(measured: Measured, prefix: str) -> Iterable[dict[str, Any]]:
    """Yield predictions of whole iterations beside what they took."""
    costs = EngineCosts(_stages(measured, prefix), measured.model.num_layers)
    for rows, tokens in measured.knots.steps:
        layer = costs.dense_layer_s(rows) + costs.attention_layer_s(rows, tokens)
        whole = costs.step_overhead_s + costs.num_layers * layer + costs.head_s(rows)
        took = measured.results[f"{prefix}/step/{rows}x{tokens}"].ms
        yield {
            "side": prefix,
            "rows": rows,
            "kv_tokens": tokens,
            "predicted_ms": _rounded(whole * 1e3),
            "measured_ms": _rounded(took),
        }


def _stages(measured: Measured, prefix: str) -> StageTimes:
    results, knots = measured.results, measured.knots
    grid = Grid(
        knots.grid_rows,
        tuple(
            _curve(results, f"{prefix}/attention/{rows}x{{}}", knots.kv_tokens)
            for rows in knots.grid_rows
        ),
    )
    return StageTimes(
        pre_attention=_curve(results, f"{prefix}/pre_attention/{{}}", knots.rows),
        post_attention=_curve(results, f"{prefix}/post_attention/{{}}", knots.rows),
        head=_curve(results, f"{prefix}/head/{{}}", knots.rows),
        decode_attention=grid,
        step_overhead_ms=_rounded(results[f"{prefix}/opening"].ms),
    )


def _prefill(measured: Measured) -> Curve:
    found = {
        pairs(n, start): measured.results[f"gpu/prefill/{n}+{start}"].ms
        for n, start in measured.knots.prefills
    }
    return Curve(tuple(sorted(found)), tuple(_rounded(found[x]) for x in sorted(found)))


def _curve(results: Results, key: str, knots: tuple[int, ...]) -> Curve:
    return Curve(knots, tuple(_rounded(results[key.format(x)].ms) for x in knots))


def _rounded(value: float) -> float:
    """Four digits: more than any measurement has."""
    return float(f"{value:.4g}")
