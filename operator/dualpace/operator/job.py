"""The Job that measures a node, as a manifest.

It has the node to itself, with the CPUs and memory that serving will have, and no access to the
API server: its result is its termination message (`report`). It is tried once; when to try again
is the plan's to say.
"""

from collections.abc import Mapping
from typing import Any

from dualpace.operator import names
from dualpace.operator.cores import CorePlan
from dualpace.operator.model.profile import Fingerprint
from dualpace.operator.model.quantity import parse_bytes, parse_duration
from dualpace.operator.modelsource import (
    MODEL_DIR,
    MODEL_VOLUME,
    model_path,
    model_setup,
    model_volumes,
)
from dualpace.operator.pod import (
    MIB,
    PodContext,
    arena_mib,
    container_security,
    metadata,
    pod_base,
    resources,
)

Manifest = dict[str, Any]


def profile_job(
    context: PodContext,
    cores: CorePlan,
    fingerprint: Fingerprint,
    *,
    attempt: int,
    causes: Mapping[str, str],
) -> Manifest:
    """Return the Job of one attempt; `causes` are annotations of the profile that it answers."""
    meta = metadata(context, names.PROFILER_COMPONENT, f"-p{attempt}")
    pod_annotations = dict(meta["annotations"])
    meta["annotations"] |= {
        names.ATTEMPT_ANNOTATION: str(attempt),
        names.FINGERPRINT_ANNOTATION: fingerprint.model_dump_json(),
        **causes,
    }
    pod = pod_base(context) | {
        "restartPolicy": "Never",
        "containers": [_container(context, cores)],
        "volumes": [*model_volumes(context.spec), {"name": "tmp", "emptyDir": {}}],
    }
    setup = model_setup(context.spec, context.images.gateway)
    if setup is not None:
        pod["initContainers"] = [setup | {"securityContext": container_security()}]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta,
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": parse_duration(context.spec.profiling.timeout),
            "template": {
                "metadata": {"labels": dict(meta["labels"]), "annotations": pod_annotations},
                "spec": pod,
            },
        },
    }


def _container(context: PodContext, cores: CorePlan) -> Manifest:
    spec = context.spec
    memory = sum(parse_bytes(e.memory) for e in (spec.gpu_engine, spec.cpu_engine))
    memory += arena_mib(spec) * MIB
    gpu = spec.gpu_engine.gpu_resource if spec.gpu_engine.device == "cuda" else None
    return {
        "name": "profiler",
        "image": context.images.profiler,
        "imagePullPolicy": spec.images.pull_policy,
        "command": ["python", "-m", "dualpace.core.launch", "dualpace.profiler"],
        "args": [
            f"--model={model_path(spec)}",
            f"--device={spec.gpu_engine.device}",
            f"--dtype={spec.dtype}",
            f"--threads={cores.cpu_engine_threads}",
            "--report=/dev/termination-log",
            "--termination-log=/dev/termination-log",
            *(
                []
                if spec.objectives.itl_ms is None
                else [f"--itl-target-ms={spec.objectives.itl_ms}"]
            ),
        ],
        # Not the log: half a log is no report.
        "terminationMessagePolicy": "File",
        "securityContext": container_security(),
        "resources": resources(cores.gpu_engine + cores.cpu_engine, memory, gpu),
        "volumeMounts": [
            {"name": MODEL_VOLUME, "mountPath": MODEL_DIR, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
        ],
    }
