"""Which image each container runs: the service's own, else those the operator was started with."""

from dataclasses import dataclass

from dualpace.operator.model.service import ServiceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceImages:
    """Images of one service; no profiler: nodes are not measured."""

    gateway: str
    gpu_engine: str
    cpu_engine: str
    profiler: str | None = None


def images_of(spec: ServiceSpec, defaults: ServiceImages) -> ServiceImages:
    """Return the images that a service runs."""
    return ServiceImages(
        gateway=spec.images.gateway or defaults.gateway,
        gpu_engine=spec.images.gpu_engine or defaults.gpu_engine,
        cpu_engine=spec.images.cpu_engine or defaults.cpu_engine,
        profiler=spec.profiling.image or defaults.profiler,
    )
