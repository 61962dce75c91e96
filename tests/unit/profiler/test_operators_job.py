"""The operator's Job and the profiler understand each other: flags one way, a report the other."""

import json
from dataclasses import replace
from typing import Any

import pytest

from dualpace.core.settings import parse_settings
from dualpace.operator.job import profile_job
from dualpace.operator.model.profile import Fingerprint
from dualpace.operator.report import decode_report
from dualpace.profiler.document import build_profile
from dualpace.profiler.report import encode_report
from dualpace.profiler.settings import ProfilerSettings
from dualpace.profiler.thresholds import derive_thresholds
from dualpace.scheduling.profile_json import profile_from_json
from tests.unit.operator.test_manifests import CORES, SPECS, context
from tests.unit.profiler.measured import stand_in, sweep


@pytest.mark.parametrize("name", SPECS)
def test_the_jobs_flags_are_the_profilers(name: str) -> None:
    job = profile_job(context(SPECS[name]), CORES, Fingerprint(), attempt=1, causes={})
    container: dict[str, Any] = job["spec"]["template"]["spec"]["containers"][0]
    assert container["command"][-1] == "dualpace.profiler"
    settings = parse_settings(
        ProfilerSettings, container["args"], {}, program="profiler", prefix="DUALPACE_PROFILER_"
    )
    assert settings.threads == CORES.cpu_engine_threads
    assert settings.report == "/dev/termination-log"
    # The root file system is read-only: nothing but the report is written outside of /tmp.
    assert settings.target is None
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert str(settings.journal.parent) in mounts


def test_the_operator_reads_the_report() -> None:
    measured = stand_in(sweep())
    profile = build_profile(measured, {})
    thresholds = derive_thresholds(profile, 1.0)
    topology = {"cpus": 64, "threads_per_core": 2, "numa_nodes": 2}
    text = encode_report(replace(profile, thresholds=thresholds), topology)
    report = decode_report(text)
    assert (report.origin, report.host, report.gpu) == ("measured", "h", "g")
    assert [t.name for t in report.thresholds] == [t.name for t in thresholds]
    assert report.topology is not None and report.topology.cpus == 64
    assert profile_from_json(json.loads(report.document)).thresholds == thresholds
