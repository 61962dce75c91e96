"""Status of both resources; conditions are metav1.Condition.

Every condition has positive polarity: True is good. `Ready` sums up.
"""

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, StringConstraints

from dualpace.operator.model.base import SpecModel


class Condition(SpecModel):
    """metav1.Condition."""

    type: Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Za-z]*$", max_length=64)]
    status: Literal["True", "False", "Unknown"]
    reason: Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Za-z]*$", max_length=64)]
    message: Annotated[str, StringConstraints(max_length=32768)] = ""
    observed_generation: Annotated[int, Field(ge=0)]
    last_transition_time: AwareDatetime


Conditions = Annotated[
    list[Condition],
    Field(
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        }
    ),
]


class Attention(SpecModel):
    """A node that is not simply serving."""

    node: str
    phase: str
    message: str = ""


class NodeCounts(SpecModel):
    """Nodes by state."""

    matched: int = 0
    ready: int = 0
    profiled: int = 0
    profiling: int = 0
    outdated: int = Field(default=0, description="Pods that are to be replaced.")


class ServiceStatus(SpecModel):
    """What the operator sees."""

    observed_generation: int = 0
    conditions: Conditions = Field(default_factory=list)
    nodes: NodeCounts = NodeCounts()
    summary: str = Field(default="", description="Ready nodes of those matched.")
    attention: Annotated[list[Attention], Field(max_length=20)] = Field(
        default_factory=list, description="The first nodes that are not simply serving."
    )


class ProfileStatus(SpecModel):
    """What the operator makes of a profile."""

    observed_generation: int = 0
    conditions: Conditions = Field(default_factory=list)
