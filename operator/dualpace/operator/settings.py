"""Settings of the operator. The chart sets them; `--help` lists them."""

from dataclasses import dataclass

from dualpace.core.service import ServiceSettings
from dualpace.core.settings import require, setting
from dualpace.operator.images import ServiceImages


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings(ServiceSettings):
    """Profiles nodes and runs DualPace on them."""

    gateway_image: str = setting("Image of the gateway, where a service names none.")
    gpu_engine_image: str = setting("Image of the gpu-engine, where a service names none.")
    cpu_engine_image: str = setting("Image of the cpu-engine, where a service names none.")
    profiler_image: str | None = setting(
        "Image of the profiler, where a service names none; unset: nodes are not measured.",
        default=None,
    )
    namespaces: str | None = setting(
        "Namespaces of the services, separated by commas; unset: all.", default=None
    )
    resync_s: float = setting("How often everything is listed anew.", default=300.0)
    drift_interval_s: float = setting(
        "How often serving pods are asked whether their engines want a new profile; 0: never.",
        default=120.0,
    )
    health_port: int = setting("TCP port of the liveness endpoint; 0: none.", default=8080)
    max_silence_s: float = setting(
        "Silence of the reconciling loop after which liveness fails.", default=180.0
    )
    crd_timeout_s: float = setting(
        "How long to wait at the start for the custom resources to be known.", default=60.0
    )

    def __post_init__(self) -> None:
        require(0 <= self.health_port < 1 << 16, "health_port: not in 0..65535")
        require(self.drift_interval_s >= 0, "drift_interval_s must not be negative")
        for name in ("resync_s", "max_silence_s"):
            require(getattr(self, name) > 0, f"{name} must be positive")
        for name in ("gateway_image", "gpu_engine_image", "cpu_engine_image"):
            require(getattr(self, name) != "", f"{name}: empty")
        require(
            self.namespaces is None or all(self.namespace_list),
            "namespaces: names are separated by single commas",
        )

    @property
    def namespace_list(self) -> tuple[str, ...]:
        """Namespaces to look at; empty: all."""
        return () if self.namespaces is None else tuple(self.namespaces.split(","))

    @property
    def images(self) -> ServiceImages:
        """Images of services that name none."""
        return ServiceImages(
            gateway=self.gateway_image,
            gpu_engine=self.gpu_engine_image,
            cpu_engine=self.cpu_engine_image,
            profiler=self.profiler_image,
        )
