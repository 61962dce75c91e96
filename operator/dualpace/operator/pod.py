"""The pod of one node, as a manifest: a gateway and two engines around a shared arena.

Pure rendering. What it relies on: the flags and variables of the services (a test holds each to
the services' own settings), and three volumes: `run` (tmpfs: arena and sockets), `model` and
`profile` (ConfigMap; its files change in place).

Shutdown: Kubernetes sends SIGTERM to all containers at once, each after its preStop hook. The
engines' hooks wait until the gateway has closed its port, so engines outlive the gateway in every
version of Kubernetes, and the pod is gone as soon as the gateway is done.
"""

from dataclasses import dataclass
from typing import Any

from dualpace.operator import names
from dualpace.operator.cores import CorePlan
from dualpace.operator.images import ServiceImages
from dualpace.operator.model.quantity import parse_bytes
from dualpace.operator.model.service import EnvVar, ServiceSpec
from dualpace.operator.modelsource import MODEL_VOLUME, model_path, model_setup, model_volumes
from dualpace.operator.tracing import tracing_variables

Manifest = dict[str, Any]

RUN_DIR = "/run/dualpace"
PROFILE_DIR = "/etc/dualpace/profile"
PROFILE_FILE = "profile.json"
KEYS_DIR = "/etc/dualpace/keys"
USER_ID = 65532
MIB = 1 << 20

_ARENA_MARGIN_MIB = 64
"""Sockets, tables and rounding besides the arena on its volume."""
_STOP_MARGIN_S = 15
_HEARTBEAT_MAX_AGE_S = 120
_SOCKETS = {"gpu-engine": "gpu", "cpu-engine": "cpu"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PodContext:
    """Whose pod it is, and where it goes."""

    namespace: str
    service: str
    owner_uid: str
    node: str
    node_uid: str
    spec: ServiceSpec
    images: ServiceImages


def arena_mib(spec: ServiceSpec) -> int:
    """Return the arena's size in whole MiB."""
    return parse_bytes(spec.arena.size) // MIB


def owner(service: str, uid: str) -> Manifest:
    """Return the reference that lets the garbage collector remove what belongs to a service."""
    return {
        "apiVersion": "serving.dualpace.io/v1alpha1",
        "kind": "DualPaceService",
        "name": service,
        "uid": uid,
        "controller": True,
    }


def metadata(context: PodContext, component: str, suffix: str = "") -> Manifest:
    """Return the metadata of an object for one node."""
    return {
        "name": names.node_object(context.service, context.node, suffix),
        "namespace": context.namespace,
        "labels": names.labels(context.service, component, context.node),
        "annotations": {
            names.NODE_ANNOTATION: context.node,
            names.NODE_UID_ANNOTATION: context.node_uid,
        },
        "ownerReferences": [owner(context.service, context.owner_uid)],
    }


def node_pod(context: PodContext, cores: CorePlan, *, profiled: bool) -> Manifest:
    """Return the pod that serves on a node; `profiled`: its ConfigMap has a profile."""
    spec = context.spec
    pod: Manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata(context, names.NODE_COMPONENT),
        "spec": pod_base(context)
        | {
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": spec.drain.endpoint_lag_seconds
            + spec.drain.seconds
            + _STOP_MARGIN_S,
            "containers": [
                _gateway(context, cores),
                _gpu_engine(context, cores),
                _cpu_engine(context, cores, profiled=profiled),
            ],
            "volumes": [
                *model_volumes(spec),
                {
                    "name": "run",
                    "emptyDir": {
                        "medium": "Memory",
                        "sizeLimit": f"{arena_mib(spec) + _ARENA_MARGIN_MIB}Mi",
                    },
                },
                {
                    "name": "profile",
                    "configMap": {
                        "name": names.node_object(context.service, context.node),
                        "optional": True,
                    },
                },
                {"name": "tmp", "emptyDir": {"sizeLimit": "256Mi"}},
                *_keys_volume(spec),
            ],
        },
    }
    setup = model_setup(context.spec, context.images.gateway)
    if setup is not None:
        pod["spec"]["initContainers"] = [setup | {"securityContext": container_security()}]
    pod["metadata"]["annotations"][names.TEMPLATE_ANNOTATION] = names.digest(pod["spec"], 16)
    return pod


def pod_base(context: PodContext) -> Manifest:
    """Return what serving and profiling pods share: where they run, and with which rights."""
    spec = context.spec
    base: Manifest = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # its variables may look like settings
        "affinity": {"nodeAffinity": _on(context.node)},
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if spec.tolerations:
        base["tolerations"] = [
            t.model_dump(mode="json", by_alias=True, exclude_none=True) for t in spec.tolerations
        ]
    if spec.images.pull_secrets:
        base["imagePullSecrets"] = [{"name": name} for name in spec.images.pull_secrets]
    if spec.runtime_class_name:
        base["runtimeClassName"] = spec.runtime_class_name
    if spec.priority_class_name:
        base["priorityClassName"] = spec.priority_class_name
    return base


def container_security() -> Manifest:
    """Return the rights of every container: none."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def resources(cpus: int, memory: int, extended: str | None = None) -> Manifest:
    """Return requests equal to limits, in whole CPUs and MiB: Guaranteed, so cores are its own."""
    limits = {"cpu": str(cpus), "memory": f"{-(-memory // MIB)}Mi"}
    if extended is not None:
        limits[extended] = "1"
    return {"requests": dict(limits), "limits": limits}


def _on(node: str) -> Manifest:
    """Return the affinity to one node.

    Through the scheduler, which minds taints and room, and not by `nodeName`, which does not.
    """
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchFields": [field]}]
        }
    }


def _container(
    context: PodContext, name: str, image: str, flags: dict[str, object], env: list[EnvVar]
) -> Manifest:
    module = f"dualpace.{name.replace('-', '_')}"
    common = {
        "model": model_path(context.spec),
        "run_dir": RUN_DIR,
        "termination_log": "/dev/termination-log",
        "log_json": "true",
    }
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": context.spec.images.pull_policy,
        "command": ["python", "-m", "dualpace.core.launch", module],
        "args": [f"--{k.replace('_', '-')}={v}" for k, v in {**common, **flags}.items()],
        "env": [*map(_variable, _untold(_tracing(context), env)), *map(_variable, env)],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": MODEL_VOLUME, "mountPath": "/models", "readOnly": True},
            {"name": "run", "mountPath": RUN_DIR},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
        ],
    }


def _tracing(context: PodContext) -> list[EnvVar]:
    variables = tracing_variables(
        context.spec, namespace=context.namespace, service=context.service, node=context.node
    )
    return [EnvVar(name=name, value=value) for name, value in variables.items()]


def _untold(variables: list[EnvVar], env: list[EnvVar]) -> list[EnvVar]:
    """Return the variables that the service's own settings do not have: those win."""
    told = {variable.name for variable in env}
    return [variable for variable in variables if variable.name not in told]


def _variable(variable: EnvVar) -> Manifest:
    if variable.secret is None:
        return {"name": variable.name, "value": variable.value}
    reference = variable.secret.model_dump(mode="json")
    return {"name": variable.name, "valueFrom": {"secretKeyRef": reference}}


def _gateway(context: PodContext, cores: CorePlan) -> Manifest:
    spec = context.spec
    flags: dict[str, object] = {
        "host": "0.0.0.0",  # noqa: S104 - the pod's own address
        "port": spec.gateway.port,
        "drain_grace_s": spec.drain.seconds,
    }
    name = spec.model.served_name or (spec.model.hub.repository if spec.model.hub else None)
    if name is not None:
        flags["served_model_name"] = name
    env = list(spec.gateway.env)
    if spec.gateway.redis_url is not None:
        env.append(EnvVar(name="DUALPACE_GATEWAY_REDIS_URL", secret=spec.gateway.redis_url))
    if spec.gateway.api_keys is not None:
        flags["api_keys_file"] = f"{KEYS_DIR}/{spec.gateway.api_keys.key}"
    probe = {"port": "http", "scheme": "HTTP"}
    lag = str(spec.drain.endpoint_lag_seconds)
    container = _container(context, "gateway", context.images.gateway, flags, env)
    container["volumeMounts"] += [
        {"name": v["name"], "mountPath": KEYS_DIR, "readOnly": True} for v in _keys_volume(spec)
    ]
    return container | {
        "ports": [{"name": "http", "containerPort": spec.gateway.port, "protocol": "TCP"}],
        "resources": resources(cores.gateway, parse_bytes(spec.gateway.memory)),
        "startupProbe": {
            "httpGet": probe | {"path": "/livez"},
            "periodSeconds": 2,
            "failureThreshold": 150,
            "timeoutSeconds": 5,
        },
        "livenessProbe": {
            "httpGet": probe | {"path": "/livez"},
            "periodSeconds": 10,
            "failureThreshold": 6,
            "timeoutSeconds": 5,
        },
        "readinessProbe": {
            "httpGet": probe | {"path": "/readyz"},
            "periodSeconds": 5,
            "failureThreshold": 2,
            "timeoutSeconds": 5,
        },
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", lag]}}},
    }


def _keys_volume(spec: ServiceSpec) -> list[Manifest]:
    """Return the volume of clients' keys, which changes in place; none without keys."""
    keys = spec.gateway.api_keys
    return [] if keys is None else [{"name": "keys", "secret": {"secretName": keys.name}}]


def _gpu_engine(context: PodContext, cores: CorePlan) -> Manifest:
    spec, engine = context.spec, context.spec.gpu_engine
    flags: dict[str, object] = {
        "device": engine.device,
        "dtype": spec.dtype,
        "placement": spec.placement.value,
        "arena_mib": arena_mib(spec),
        "host_slots": spec.arena.host_slots,
        "threads": cores.gpu_engine if engine.device == "cpu" else 1,
    }
    # Whoever touches a page of the arena first pays for it: the gpu-engine, which makes it.
    memory = parse_bytes(engine.memory) + (arena_mib(spec) + _ARENA_MARGIN_MIB) * MIB
    gpu = engine.gpu_resource if engine.device == "cuda" else None
    return _engine(context, "gpu-engine", context.images.gpu_engine, flags, engine.env) | {
        "resources": resources(cores.gpu_engine, memory, gpu)
    }


def _cpu_engine(context: PodContext, cores: CorePlan, *, profiled: bool) -> Manifest:
    spec, engine = context.spec, context.spec.cpu_engine
    flags: dict[str, object] = {
        "dtype": spec.dtype,
        "max_batch": spec.arena.host_slots,
        "threads": cores.cpu_engine_threads,
    }
    if profiled:  # the engine does not start without the file that it is told of
        flags["profile"] = f"{PROFILE_DIR}/{PROFILE_FILE}"
        if spec.objectives.itl_ms is not None:
            flags["itl_target_ms"] = spec.objectives.itl_ms
    return _engine(context, "cpu-engine", context.images.cpu_engine, flags, engine.env) | {
        "resources": resources(cores.cpu_engine, parse_bytes(engine.memory))
    }


def _engine(
    context: PodContext, name: str, image: str, flags: dict[str, object], env: list[EnvVar]
) -> Manifest:
    if context.spec.pinning.pin_threads:
        flags["cores"] = "auto"
    container = _container(context, name, image, flags, env)
    container["volumeMounts"].append(
        {"name": "profile", "mountPath": PROFILE_DIR, "readOnly": True}
    )
    probe = [
        *("python", "-m", "dualpace.ipc.probe"),
        f"--run-dir={RUN_DIR}",
        f"--engine={_SOCKETS[name]}",
        f"--max-age-s={_HEARTBEAT_MAX_AGE_S}",
    ]
    wait_s = context.spec.drain.endpoint_lag_seconds + context.spec.drain.seconds + 10
    wait = [
        *("python", "-m", "dualpace.core.wait_closed"),
        f"--port={context.spec.gateway.port}",
        f"--timeout-s={wait_s}",
    ]
    container |= {
        # Weights of many GiB from slow disks: up to an hour.
        "startupProbe": {
            "exec": {"command": probe},
            "periodSeconds": 10,
            "failureThreshold": 360,
            "timeoutSeconds": 15,
        },
        "livenessProbe": {
            "exec": {"command": probe},
            "periodSeconds": 30,
            "failureThreshold": 2,
            "timeoutSeconds": 15,
        },
        "lifecycle": {"preStop": {"exec": {"command": wait}}},
    }
    return container
