"""DualPaceService: one model, served on every node that it selects.

Field descriptions become the text of `kubectl explain`; defaults and limits stand in the schema,
so that an object that was read back says what is in force.
"""

import enum
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from dualpace.operator.model.base import Rule, SpecModel
from dualpace.operator.model.quantity import Bytes, Duration, parse_bytes

Name = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)
]
Image = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^\S+$")]
RelativePath = Annotated[str, StringConstraints(pattern=r"^[^/\s][^\s]*$", max_length=512)]
ClockTime = Annotated[str, StringConstraints(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]


class SecretKey(SpecModel):
    """One key of a Secret in the service's namespace."""

    name: Name
    key: Annotated[str, StringConstraints(min_length=1, max_length=253)]


class ClaimSource(SpecModel):
    """A model on a PersistentVolumeClaim, mounted read-only."""

    name: Name = Field(description="PersistentVolumeClaim in the service's namespace.")
    path: RelativePath | None = Field(
        default=None, description="Model directory or GGUF file within the volume; unset: its root."
    )


class ImageSource(SpecModel):
    """A model in a container image, mounted as an image volume (Kubernetes 1.33 and later)."""

    reference: Image = Field(description="Image, best by digest.")
    path: RelativePath | None = Field(
        default=None, description="Model directory or GGUF file within the image; unset: its root."
    )


class HubSource(SpecModel):
    """A model of the Hugging Face hub, downloaded to the node before the services start."""

    repository: Annotated[str, StringConstraints(pattern=r"^[\w.-]+/[\w.-]+$", max_length=200)]
    revision: Annotated[str, StringConstraints(pattern=r"^[\w./-]+$", max_length=200)] | None = (
        Field(
            default=None, description="Branch, tag or commit; a commit makes restarts repeatable."
        )
    )
    token_secret: SecretKey | None = Field(
        default=None, description="Access token, for gated or private models."
    )
    cache_claim: Name | None = Field(
        default=None,
        description="Claim that keeps downloads; unset: each new pod downloads into an emptyDir.",
    )


class Model(SpecModel):
    """Where the model comes from; exactly one source."""

    claim: ClaimSource | None = None
    image: ImageSource | None = None
    hub: HubSource | None = None
    served_name: Annotated[str, StringConstraints(min_length=1, max_length=512)] | None = Field(
        default=None,
        description="Names that clients may ask for, separated by commas; unset: the hub's name,"
        " or that of the model's folder.",
    )

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "[has(self.claim), has(self.image), has(self.hub)].filter(x, x).size() == 1",
            "exactly one of claim, image and hub must be set",
            lambda m: sum(s is not None for s in (m.claim, m.image, m.hub)) == 1,
        ),
    )


class Images(SpecModel):
    """Images of the services; unset: those that the operator was installed with."""

    gateway: Image | None = None
    gpu_engine: Image | None = None
    cpu_engine: Image | None = None
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    pull_secrets: Annotated[list[Name], Field(max_length=16)] = Field(default_factory=list)


class EnvVar(SpecModel):
    """A setting of a service; an unknown DUALPACE_ variable stops its start."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
    value: Annotated[str, StringConstraints(max_length=4096)] | None = None
    secret: SecretKey | None = None

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.value) != has(self.secret)",
            "exactly one of value and secret must be set",
            lambda v: (v.value is None) != (v.secret is None),
        ),
    )


Env = Annotated[list[EnvVar], Field(max_length=64)]


class Gateway(SpecModel):
    """The HTTP front of each node."""

    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    cpus: Annotated[int, Field(ge=1, le=64)] = 2
    memory: Bytes = "2Gi"
    api_keys: SecretKey | None = Field(
        default=None, description="Keys that clients need, and their limits: a JSON document."
    )
    redis_url: SecretKey | None = Field(
        default=None, description="Redis that all gateways share their limits in."
    )
    env: Env = Field(default_factory=list, description="More settings, DUALPACE_GATEWAY_...")


class Placement(enum.StrEnum):
    """Where requests decode."""

    AUTO = "auto"
    GPU = "gpu"
    CPU = "cpu"


class GpuEngine(SpecModel):
    """Prefills, device-resident decodes, and the placement of requests."""

    device: Literal["cuda", "cpu"] = Field(
        default="cuda",
        description="cpu stands in for a GPU on nodes without one; it asks for no GPU.",
    )
    gpu_resource: Annotated[str, StringConstraints(pattern=r"^[a-z0-9./-]+$", max_length=128)] = (
        Field(default="nvidia.com/gpu", description="Extended resource of which one is requested.")
    )
    cpus: Annotated[int, Field(ge=1, le=256)] = 4
    memory: Bytes = Field(default="16Gi", description="Without the arena, which is added to it.")
    env: Env = Field(default_factory=list, description="More settings, DUALPACE_GPU_ENGINE_...")


class CpuEngine(SpecModel):
    """Decodes over host memory."""

    cpus: Annotated[int, Field(ge=0, le=1024)] = Field(
        default=0, description="CPUs; 0 takes what the node has left (see pinning)."
    )
    memory: Bytes = Field(default="24Gi", description="Weights and scratch; without the arena.")
    env: Env = Field(default_factory=list, description="More settings, DUALPACE_CPU_ENGINE_...")


class Arena(SpecModel):
    """Shared host memory: KV cache of the requests that decode on the CPU."""

    size: Bytes = Field(
        default="16Gi", description="Whole MiB are used; the volume is a little larger."
    )
    host_slots: Annotated[int, Field(ge=1, le=65536)] = Field(
        default=256, description="Most sequences on the host at once."
    )

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            None,  # CEL knows quantities only from Kubernetes 1.29 on
            "size must be at least 64Mi",
            lambda a: parse_bytes(a.size) >= 64 << 20,
        ),
    )


class Pinning(SpecModel):
    """How CPUs are divided on each node; a change replaces the pods one by one."""

    policy: Literal["WholeCores", "AsGiven"] = Field(
        default="WholeCores",
        description="WholeCores rounds each container up to whole physical cores, and keeps the"
        " cpu-engine on one NUMA node; AsGiven takes the numbers as they are.",
    )
    reserved_cpus: Annotated[int, Field(ge=0, le=256)] = Field(
        default=2, description="CPUs left to other pods of the node when cpuEngine.cpus is 0."
    )
    pin_threads: bool = Field(
        default=False,
        description="Engines pin their threads within the CPUs of their containers; only for nodes"
        " whose kubelet has the static CPU manager, as containers share CPUs without.",
    )
    threads_per_core: Annotated[int, Field(ge=0, le=8)] = Field(
        default=0, description="0 takes it from the node's profile or labels, else 2."
    )


class Objectives(SpecModel):
    """What the cpu-engine keeps by taking no more requests than that allows."""

    itl_ms: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Milliseconds between two tokens; needs a profile."
    )


class Window(SpecModel):
    """A daily span of time, UTC; it may pass midnight."""

    start: ClockTime
    end: ClockTime

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule("self.start != self.end", "start and end must differ", lambda w: w.start != w.end),
    )


class Profiling(SpecModel):
    """How nodes are measured; without an image they are served with built-in thresholds."""

    image: Image | None = Field(
        default=None,
        description="Image of the profiler; unset: the operator's, if it was given one.",
    )
    reprofile: Literal["Window", "Anytime", "OnRequest"] = Field(
        default="OnRequest",
        description="When a node that serves may be taken out to be measured again: in `window`,"
        " at any time, or only when annotated.",
    )
    window: Window | None = None
    max_age: Duration = Field(
        default="720h", description="Age at which a profile is to be renewed."
    )
    timeout: Duration = Field(
        default="30m", description="A measurement that takes longer has failed."
    )

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.reprofile != 'Window' || has(self.window)",
            "window must be set when reprofile is Window",
            lambda p: p.reprofile != "Window" or p.window is not None,
        ),
    )


class Tracing(SpecModel):
    """Where spans of requests go; without an endpoint nothing is traced."""

    endpoint: (
        Annotated[str, StringConstraints(pattern=r"^https?://[^\s/]+\S*$", max_length=512)] | None
    ) = Field(default=None, description="URL of an OpenTelemetry collector, with its port.")
    protocol: Literal["http/protobuf", "grpc"] = "http/protobuf"


class Update(SpecModel):
    """How pods are replaced."""

    max_unavailable: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=1, description="Nodes that may be out of service at once because of the operator."
    )
    paused: bool = Field(
        default=False, description="Replace and re-profile nothing; missing pods are still made."
    )


class Drain(SpecModel):
    """How a pod stops: first the gateway finishes its requests, then the engines go."""

    seconds: Annotated[int, Field(ge=0, le=3600)] = Field(
        default=30, description="How long running requests may go on."
    )
    endpoint_lag_seconds: Annotated[int, Field(ge=0, le=120)] = Field(
        default=5,
        description="Pause before the gateway is told to stop, for load balancers to notice.",
    )


class Toleration(SpecModel):
    """As in a pod."""

    key: str | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: int | None = None


class ServiceSpec(SpecModel):
    """What is served, where, and how."""

    model: Model
    node_selector: Annotated[dict[str, str], Field(min_length=1, max_length=32)] = Field(
        description="Labels of the nodes to serve on. One DualPaceService a node: the oldest wins."
    )
    tolerations: Annotated[list[Toleration], Field(max_length=32)] = Field(default_factory=list)
    runtime_class_name: Name | None = None
    priority_class_name: Name | None = None
    images: Images = Images()
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    placement: Placement = Placement.AUTO
    gateway: Gateway = Gateway()
    gpu_engine: GpuEngine = GpuEngine()
    cpu_engine: CpuEngine = CpuEngine()
    arena: Arena = Arena()
    pinning: Pinning = Pinning()
    objectives: Objectives = Objectives()
    profiling: Profiling = Profiling()
    tracing: Tracing = Tracing()
    update: Update = Update()
    drain: Drain = Drain()
