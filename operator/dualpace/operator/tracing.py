"""Variables that have the services of a pod send spans to a collector: OpenTelemetry's own.

Services name themselves. What they cannot know, whose pod on which node they are, is told here.
"""

from dualpace.operator.model.service import ServiceSpec


def tracing_variables(
    spec: ServiceSpec, *, namespace: str, service: str, node: str
) -> dict[str, str]:
    """Return the variables, the same for each container; none where nothing is traced."""
    if spec.tracing.endpoint is None:
        return {}
    resource = {
        "service.namespace": f"{namespace}.{service}",
        "k8s.namespace.name": namespace,
        "k8s.node.name": node,
    }
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": spec.tracing.endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": spec.tracing.protocol,
        "OTEL_RESOURCE_ATTRIBUTES": ",".join(f"{key}={value}" for key, value in resource.items()),
    }
