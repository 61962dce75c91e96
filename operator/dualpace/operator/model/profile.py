"""NodeProfile: what a node was measured to do with one model, and the thresholds that follow.

The operator writes the spec when a measurement completes, and leaves it alone until the next one:
thresholds edited by hand take effect, and the status says that they are not as measured. The
object belongs to its Node, and goes when the node goes or is replaced.
"""

from datetime import datetime
from typing import Annotated, ClassVar

from pydantic import AwareDatetime, Field, StringConstraints

from dualpace.operator.model.base import Rule, SpecModel
from dualpace.scheduling.profile import FORMAT, Origin

Text = Annotated[str, StringConstraints(max_length=1024)]


class Threshold(SpecModel):
    """A number that engines decide by, and why it is what it is."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]
    value: float
    unit: Annotated[str, StringConstraints(max_length=32)] = ""
    why: Text = ""


class Topology(SpecModel):
    """The node's processors as the profiler found them."""

    cpus: Annotated[int, Field(ge=1, le=8192)] = Field(description="Logical CPUs.")
    threads_per_core: Annotated[int, Field(ge=1, le=8)]
    numa_nodes: Annotated[int, Field(ge=1, le=64)]

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.cpus >= self.threadsPerCore * self.numaNodes",
            "cpus must be at least one core for each NUMA node",
            lambda t: t.cpus >= t.threads_per_core * t.numa_nodes,
        ),
    )


class Fingerprint(SpecModel):
    """What the measurement depends on; a change of any part makes the profile outdated."""

    gpu: Text = ""
    driver: Text = ""
    cpu: Text = ""
    kernel: Text = ""
    memory: Text = ""
    image: Text = ""
    model: Text = ""

    def differences(self, other: "Fingerprint") -> list[str]:
        """Return the parts in which the other differs, as `part: here → there`."""
        return [
            f"{part}: {getattr(self, part) or 'unknown'} → {getattr(other, part) or 'unknown'}"
            for part in type(self).model_fields
            if getattr(self, part) != getattr(other, part)
        ]


class Provenance(SpecModel):
    """How the numbers came about."""

    origin: Origin
    measured_at: AwareDatetime
    job: Annotated[str, StringConstraints(max_length=64)] = Field(description="UID of the Job.")
    request: Annotated[str, StringConstraints(max_length=256)] = Field(
        default="", description="Value of the annotation that asked for it, if one did."
    )
    drift: Annotated[str, StringConstraints(max_length=256)] = Field(
        default="", description="UID of the pod whose engines had reported drift, if one did."
    )


class ProfileSpec(SpecModel):
    """One node with one model."""

    node_name: Annotated[str, StringConstraints(min_length=1, max_length=253)]
    model_key: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8}$")] = Field(
        description="Digest of the model's source and data type; services with the same share it."
    )
    gpu: Text = Field(default="", description="Name of the GPU.")
    host: Text = Field(default="", description="Name of the processor.")
    fingerprint: Fingerprint
    topology: Topology | None = None
    thresholds: Annotated[
        list[Threshold],
        Field(
            max_length=64,
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
        ),
    ] = Field(default_factory=list)
    document: Annotated[str, StringConstraints(max_length=262144)] = Field(
        description=f"The measured tables: a JSON document of format {FORMAT}."
    )
    provenance: Provenance

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.nodeName == oldSelf.nodeName && self.modelKey == oldSelf.modelKey",
            "nodeName and modelKey cannot be changed",
            None,
        ),
        Rule(
            None,  # the schema's list type says so too
            "names of thresholds must differ",
            lambda p: len({t.name for t in p.thresholds}) == len(p.thresholds),
        ),
    )

    @property
    def measured_at(self) -> datetime:
        """When the numbers were taken."""
        return self.provenance.measured_at
