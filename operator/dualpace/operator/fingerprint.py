"""What a measurement depends on, as the operator can see it from outside: node, images, model."""

from dualpace.operator.images import ServiceImages
from dualpace.operator.model.profile import Fingerprint
from dualpace.operator.model.quantity import parse_bytes
from dualpace.operator.model.service import ServiceSpec
from dualpace.operator.names import digest
from dualpace.operator.observed import NodeView

_GPU_LABELS = ("nvidia.com/gpu.product", "nvidia.com/gpu.memory", "nvidia.com/gpu.count")
_DRIVER_LABELS = (
    "nvidia.com/cuda.driver-version.full",
    "nvidia.com/cuda.driver.major",
    "nvidia.com/cuda.driver.minor",
    "nvidia.com/cuda.driver.rev",
)
_CPU_LABELS = (
    "feature.node.kubernetes.io/cpu-model.vendor_id",
    "feature.node.kubernetes.io/cpu-model.family",
    "feature.node.kubernetes.io/cpu-model.id",
)
"""Labels of NVIDIA's GPU feature discovery, and of node feature discovery. Without them the parts
that they tell are unknown, and a change of those goes unseen."""


def model_key(spec: ServiceSpec) -> str:
    """Return the digest of what a profile is about besides the node: the model and its type."""
    model = spec.model.model_dump(mode="json", exclude={"served_name"}, exclude_none=True)
    return digest([model, spec.dtype])


def fingerprint(spec: ServiceSpec, images: ServiceImages, node: NodeView) -> Fingerprint:
    """Return what a measurement made now would depend on."""
    return Fingerprint(
        gpu=_labels(node, _GPU_LABELS) or node.gpus,
        driver=_labels(node, _DRIVER_LABELS),
        cpu=" ".join(filter(None, (_labels(node, _CPU_LABELS), f"cpus={node.cpus}"))),
        kernel=node.kernel,
        memory=_gibibytes(node.memory),
        image=digest([images.gpu_engine, images.cpu_engine, images.profiler]),
        model=model_key(spec),
    )


def _labels(node: NodeView, keys: tuple[str, ...]) -> str:
    return " ".join(node.id.labels[key] for key in keys if node.id.labels.get(key))


def _gibibytes(quantity: str) -> str:
    """Round: the kernel keeps a little more or less for itself from boot to boot."""
    try:
        return f"{round(parse_bytes(quantity) / (1 << 30))}Gi"
    except ValueError:
        return quantity
