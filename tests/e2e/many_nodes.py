"""Many simulated nodes: how fast the operator has them served, and what it costs when idle.

`python -m tests.e2e.many_nodes [NODES] [IDLE_SECONDS]`. The control plane is real; kubelets are
played by threads of this process. Requests are counted from the API server's audit log.
"""

import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.cluster.control_plane import ControlPlane, control_plane
from tests.cluster.kubelet import Kubelets, make_node
from tests.cluster.operator_process import OperatorProcess
from tests.cluster.story import Story, until
from tests.integration.operator.conftest import install


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What was measured."""

    convergence_s: float
    requests_until_then: int
    idle_requests_per_node_and_minute: float
    idle_writes: int
    rss_mib: float
    cpu_s: float


def measure(
    plane: ControlPlane, nodes: int, idle_s: float, log: Path, *, prefix: str = "many"
) -> Cost:
    """Make nodes and one service on all of them, wait until all serve, then watch the idling."""
    with ThreadPoolExecutor(8) as pool:
        made = [f"{prefix}-{i}" for i in range(nodes)]
        list(pool.map(lambda name: make_node(plane, name, {"pool": prefix}), made))
    story = Story(plane, prefix)
    before = len(plane.operator_requests())
    operator = OperatorProcess(plane, log)
    try:
        began = time.monotonic()
        story.create({"pool": prefix}, update={"maxUnavailable": max(1, nodes // 10)})
        until(
            "all nodes serve",
            lambda: story.status().get("nodes", {}).get("ready") == nodes,
            timeout_s=900,
        )
        convergence_s = time.monotonic() - began
        process = psutil.Process(operator.process.pid)
        busy = _when_quiet(plane)
        time.sleep(idle_s)
        idle_requests = plane.operator_requests()[busy:]
        return Cost(
            convergence_s=convergence_s,
            requests_until_then=busy - before,
            idle_requests_per_node_and_minute=len(idle_requests) / nodes / idle_s * 60,
            idle_writes=sum(r["verb"] not in ("get", "list", "watch") for r in idle_requests),
            rss_mib=process.memory_info().rss / (1 << 20),
            cpu_s=sum(process.cpu_times()[:2]),
        )
    finally:
        operator.kill()


def _when_quiet(plane: ControlPlane) -> int:
    """Wait until the last statuses are written; returns the number of requests until then."""
    for _ in range(40):
        count = len(plane.operator_requests())
        time.sleep(3)
        if len(plane.operator_requests()) == count:
            return count
    raise AssertionError("the operator does not come to rest")


def main(arguments: list[str]) -> int:
    nodes = int(arguments[0]) if arguments else 500
    idle_s = float(arguments[1]) if len(arguments) > 1 else 60.0
    with tempfile.TemporaryDirectory() as folder, control_plane(install) as plane:
        with Kubelets(plane, poll_s=0.5, threads=6):
            cost = measure(plane, nodes, idle_s, Path(folder) / "log")
        print(
            f"{nodes} simulated nodes: served after {cost.convergence_s:.1f} s"
            f" with {cost.requests_until_then} requests; idle"
            f" {cost.idle_requests_per_node_and_minute:.3f} requests a node and minute;"
            f" {cost.rss_mib:.0f} MiB resident, {cost.cpu_s:.1f} s of CPU;"
            f" {threading.active_count()} threads played the kubelets"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
