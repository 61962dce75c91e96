"""Kills the operator with SIGKILL at random points of a service's life, and compares the ends.

`python -m tests.e2e.kill_operator [KILLS] [SEED]` runs the story once undisturbed and once with
that many kills, and exits with 1 unless both leave the same objects behind.
"""

import functools
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dualpace.operator import names
from tests.cluster.control_plane import ControlPlane, control_plane
from tests.cluster.kubelet import Kubelets, make_node
from tests.cluster.operator_process import OperatorProcess
from tests.cluster.story import PROFILES, Story, profiles_of, until
from tests.integration.operator.conftest import install

Step = tuple[Callable[[], None], Callable[[], bool]]
_NODES = ("one", "two", "three")


class Life:
    """The story's steps, each with what must come of it."""

    def __init__(self, plane: ControlPlane, name: str) -> None:
        self.plane, self.pool = plane, name
        self.nodes = [f"{name}-{node}" for node in _NODES]
        for node in self.nodes:
            make_node(plane, node, {"pool": name})
        self.story = Story(plane, name)

    def steps(self) -> list[Step]:
        first = self.nodes[0]
        profile = f"{PROFILES}/{{}}"

        def path() -> str:
            return profile.format(profiles_of(self.plane, first)[0]["metadata"]["name"])

        def request() -> None:
            note = {names.REQUEST_ANNOTATION: "again"}
            self.plane.merge(path(), {"metadata": {"annotations": note}})

        def requested() -> bool:
            found = profiles_of(self.plane, first)
            return bool(found and found[0]["spec"]["provenance"].get("request") == "again")

        def edit() -> None:
            spec = profiles_of(self.plane, first)[0]["spec"]
            spec["thresholds"][0]["value"] = 5
            self.plane.merge(path(), {"spec": {"thresholds": spec["thresholds"]}})

        def label(value: str | None) -> Callable[[], None]:
            body = {"metadata": {"labels": {"pool": value}}}
            return lambda: self.plane.merge(f"/api/v1/nodes/{self.nodes[1]}", body)

        def edited() -> bool:
            return '"value":5' in self.story.configs()[first]["profile.json"]

        return [
            (lambda: self.story.create({"pool": self.pool}), lambda: self.serves(3)),
            (request, lambda: requested() and self.serves(3)),
            (lambda: self.story.patch({"pinning": {"reservedCpus": 8}}), lambda: self.serves(3)),
            (label(None), lambda: self.serves(2) and len(self.story.pods()) == 2),
            (label(self.pool), lambda: self.serves(3)),
            (edit, lambda: edited() and self.serves(3)),
        ]

    def serves(self, count: int) -> bool:
        counts = self.story.status().get("nodes", {})
        wanted = {"matched": count, "ready": count, "outdated": 0, "profiling": 0}
        return bool(wanted.items() <= counts.items()) and self.story.ready_pods() == count

    def remains(self) -> list[Any]:
        """Everything there is, without what differs between any two runs."""
        found: list[Any] = [
            sorted((c["type"], c["status"], c["reason"]) for c in self.story.status()["conditions"])
        ]
        for pod in self.story.pods():
            containers = [(c["name"], c["args"], c["resources"]) for c in pod["spec"]["containers"]]
            found.append((pod["metadata"]["annotations"][names.NODE_ANNOTATION], containers))
        found.append(self.story.configs())
        found.append(len(self.story.owned()))
        for node in self.nodes:
            for profile in profiles_of(self.plane, node):
                spec = dict(profile["spec"])
                spec["provenance"] = spec["provenance"].get("request")
                found.append(spec)
        return sorted(str(part).replace(self.pool, "POOL") for part in found)


def undisturbed(plane: ControlPlane, log: Path) -> list[Any]:
    life = Life(plane, "calm")
    operator = OperatorProcess(plane, log)
    for act, holds in life.steps():
        act()
        until("the step's end", holds, timeout_s=60)
    operator.stop()
    return life.remains()


def killed(plane: ControlPlane, log: Path, kills: int, seed: int) -> tuple[list[Any], int]:
    """Returns what remains, and how often the operator was killed."""
    life, rng, count = Life(plane, "killed"), random.Random(seed), 0
    steps = life.steps()
    for number, (act, holds) in enumerate(steps, start=1):
        act()
        deadline = time.monotonic() + 240
        while count < kills * number // len(steps) or not holds():
            begun = _starts(log)
            operator = OperatorProcess(plane, log)
            # From before it has read anything to after it is done: some kills are timed from the
            # start of the process, the others from when it begins to work.
            if rng.random() < 0.75:
                until("it works", functools.partial(_more_starts, log, begun))
                time.sleep(rng.uniform(0.0, 1.5))
            else:
                time.sleep(rng.uniform(0.3, 3.0))
            operator.kill()
            count += 1
            assert time.monotonic() < deadline or count < kills, "no progress between kills"
    operator = OperatorProcess(plane, log)
    until("the end", lambda: life.serves(3), timeout_s=60)
    time.sleep(2)
    operator.stop()
    return life.remains(), count


def _starts(log: Path) -> int:
    return log.read_text().count("operator runs")


def _more_starts(log: Path, begun: int) -> bool:
    return _starts(log) > begun


def main(arguments: list[str]) -> int:
    kills = int(arguments[0]) if arguments else 50
    seed = int(arguments[1]) if len(arguments) > 1 else 1
    with tempfile.TemporaryDirectory() as folder, control_plane(install) as plane:
        log = Path(folder) / "log"
        with Kubelets(plane):
            expected = undisturbed(plane, log)
            found, count = killed(plane, log, kills, seed)
        refused = log.read_text().count("forbidden")
    print(f"killed {count} times (seed {seed}); refused requests: {refused}")
    for part in set(expected) ^ set(found):
        print(f"{'missing' if part in expected else 'unexpected'}: {part[:500]}")
    print("the ends are the same" if expected == found else "THE ENDS DIFFER")
    return 0 if expected == found and not refused else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
