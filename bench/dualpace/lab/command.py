"""The command line: flags in, text or JSON out. Every output says that it is simulated."""

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from dualpace.core.errors import SettingsError
from dualpace.lab.metrics import measure
from dualpace.lab.report import metrics_text, summary_text
from dualpace.lab.side_by_side import RATES
from dualpace.lab.simulation import simulate
from dualpace.lab.summary import Plan, as_document, cases, run_plan
from dualpace.lab.systems import BLOCK_SIZE, SYSTEMS, Hardware, system
from dualpace.lab.traces import workload
from dualpace.lab.workload import poisson, replay, require_fit


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns the exit status. Raises DualPaceError."""
    options = _parser().parse_args(arguments)
    status: int = options.command(options)
    return status


def _run(options: argparse.Namespace) -> int:
    lengths = workload(options.workload, count=options.requests, seed=options.seed)
    if options.rate == "trace":
        arrivals = replay(lengths)
    else:
        arrivals = poisson(lengths, _rate(options.rate), options.seed)
    build, hardware = system(options.system), _hardware(options, options.host)
    hardware.costs()
    require_fit(lengths, hardware.device_blocks * BLOCK_SIZE)
    with _progress(len(arrivals), "requests") as bar:
        recorder = simulate(build, arrivals, hardware, progress=lambda done: _advance(bar, done))
    metrics = measure(recorder)
    if options.json:
        _print_json({**_label(hardware, options), "metrics": metrics.as_dict()})
    else:
        print(metrics_text(options.system, hardware, options.seed, source_commit(), metrics))
    return 0 if metrics.finished == metrics.requests else 1


def _summary(options: argparse.Namespace) -> int:
    plan = Plan(
        hardware=_hardware(options, options.hosts[0]),
        hosts=tuple(options.hosts),
        systems=tuple(options.systems),
        workload=options.workload,
        requests=options.requests,
        seeds=tuple(options.seeds),
        itl_target_s=options.itl_target,
        ttft_limit_s=options.ttft_limit,
        code_rates=tuple(options.code_rates),
    )
    for name in plan.systems:
        system(name)
    for host in plan.hosts:
        _hardware(options, host).costs()
    lengths = workload(plan.workload, count=plan.requests)
    require_fit(lengths, plan.hardware.device_blocks * BLOCK_SIZE)
    commit = source_commit()
    outcomes = []
    with _progress(len(cases(plan)), "cases") as bar:
        for outcome in run_plan(plan, jobs=options.jobs):
            outcomes.append(outcome)
            bar.update()
    document = as_document(plan, outcomes, commit, jobs=options.jobs)
    if options.json:
        _print_json(document)
    else:
        print(summary_text(document))
    return 0


def _figures(options: argparse.Namespace) -> int:
    try:
        from dualpace.lab.figures.everything import draw_all  # noqa: PLC0415 - matplotlib is slow
    except ImportError as error:
        raise SettingsError(f"{error.name} is missing; pip install 'dualpace[lab]'") from error
    hardware = _hardware(options, options.host)
    hardware.costs()
    with _progress(6, "figures") as bar:

        def done(what: str) -> None:
            bar.set_postfix_str(what)
            bar.update()

        draw_all(
            options.out,
            hardware,
            requests=options.requests,
            seed=options.seed,
            jobs=options.jobs,
            commit=source_commit(),
            done=done,
        )
    print(f"simulated figures are in {options.out}")
    return 0


def source_commit() -> str:
    """Return the commit of the source tree, or `unknown` for an installed package."""
    try:
        return subprocess.run(  # noqa: S603 - nothing in it comes from outside
            ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"],  # noqa: S607
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dualpace lab", description=__doc__)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="simulate one system under one workload")
    run.set_defaults(command=_run)
    run.add_argument("--system", default="dualpace", help=", ".join(SYSTEMS))
    run.add_argument("--rate", default="2.5", help="requests a second, inf, or trace")
    run.add_argument("--host", default="xeon-4510-120")
    run.add_argument("--seed", type=int, default=0)
    summary = commands.add_parser("summary", help="compare systems: rates, throughput, latency")
    summary.set_defaults(command=_summary)
    summary.add_argument("--systems", nargs="+", default=list(SYSTEMS))
    summary.add_argument("--hosts", nargs="+", default=["xeon-4510-120", "xeon-4510-180"])
    summary.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    summary.add_argument("--itl-target", type=float, default=0.4, help="seconds, P99")
    summary.add_argument("--ttft-limit", type=float, default=10.0, help="seconds, P99")
    summary.add_argument(
        "--code-rates",
        type=float,
        nargs="*",
        default=list(RATES),
        help="requests a second at which Azure's code trace is compared with the GPU alone",
    )
    summary.add_argument("--jobs", type=int, default=1, help="processes")
    figures = commands.add_parser("figures", help="draw every figure, as PNG and CSV")
    figures.set_defaults(command=_figures)
    figures.add_argument("--out", type=Path, default=Path("build/figures"))
    figures.add_argument("--host", default="xeon-4510-120")
    figures.add_argument("--seed", type=int, default=0)
    figures.add_argument("--jobs", type=int, default=2, help="processes")
    for command in (run, summary):
        command.add_argument("--json", action="store_true")
        command.add_argument(
            "--workload",
            default="azure-conv",
            help="azure-conv, azure-code, azure-code+conv, sharegpt, fixed:<in>:<out>, or a file",
        )
    for command in (run, summary, figures):
        command.add_argument("--requests", type=int, default=2000)
        command.add_argument("--gpu", default="rtx-4090")
        command.add_argument("--model", default="llama-3.1-8b")
        command.add_argument("--device-blocks", type=int, default=1650)
        command.add_argument("--host-blocks", type=int, default=30720)
    return parser


def _hardware(options: argparse.Namespace, host: str) -> Hardware:
    return Hardware(
        gpu=options.gpu,
        host=host,
        model=options.model,
        device_blocks=options.device_blocks,
        host_blocks=options.host_blocks,
    )


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not rate > 0:
        raise SettingsError(f"rate: {text!r} is not a number above zero, inf, or trace")
    return rate


def _label(hardware: Hardware, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "kind": "simulated",
        "commit": source_commit(),
        "system": options.system,
        "gpu": hardware.gpu,
        "host": hardware.host,
        "model": hardware.model,
        "device_blocks": hardware.device_blocks,
        "host_blocks": hardware.host_blocks,
        "workload": options.workload,
        "rate": options.rate,
        "seed": options.seed,
    }


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(_without_nan(document), indent=2))


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _progress(total: int, unit: str) -> "tqdm[Any]":
    return tqdm(total=total, unit=f" {unit}", disable=not sys.stderr.isatty())


def _advance(bar: "tqdm[Any]", done: int) -> None:
    bar.update(done - bar.n)
