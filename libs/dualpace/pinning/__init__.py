"""Which cores the parts of a node run on: what there is, a plan, and whether it took.

The standard library alone, so that operators and engines share one planner.
"""

from dualpace.pinning.cpulist import format_cpulist, parse_cpulist
from dualpace.pinning.pins import Pins, own_cores, pins_from_text, pins_text
from dualpace.pinning.planner import CoreSet, NodePlan, NodeRequest, plan_node
from dualpace.pinning.process import (
    ProcessPinning,
    pin_process,
    pinning_gauges,
    settle_pins,
)
from dualpace.pinning.sysfs import read_topology
from dualpace.pinning.topology import Core, Topology, uniform_topology

__all__ = [
    "Core",
    "CoreSet",
    "NodePlan",
    "NodeRequest",
    "Pins",
    "ProcessPinning",
    "Topology",
    "format_cpulist",
    "own_cores",
    "parse_cpulist",
    "pin_process",
    "pinning_gauges",
    "pins_from_text",
    "pins_text",
    "plan_node",
    "read_topology",
    "settle_pins",
    "uniform_topology",
]
