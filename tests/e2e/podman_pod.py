"""Runs the pod that the operator renders, under podman, with a small model and no GPU.

`python -m tests.e2e.podman_pod [--build]` (as root, with buildah and podman). It renders the pod,
replaces what only a cluster has (claims, ConfigMaps, memory volumes, ports, probes) by the same
from the host, plays it, and asks it for a chat answer by way of both engines. Probes and hooks are
run by hand. Then each engine is killed, and the other containers must not notice.

Environment: DUALPACE_BASE_IMAGE, a Debian with python3 and venv, for --build; DUALPACE_BUILD_FLAGS,
more flags of `buildah bud`; CONTAINERS_CONF as podman takes it.
"""

import argparse
import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from dualpace.checkpoint import resolve_model
from dualpace.operator.cores import CorePlan
from dualpace.operator.images import ServiceImages
from dualpace.operator.model.service import ServiceSpec
from dualpace.operator.pod import PodContext, node_pod

REPOSITORY = Path(__file__).parents[2]
IMAGES = {"gateway": "services/gateway", "gpu-engine": "services/gpu_engine",
          "cpu-engine": "services/cpu_engine", "operator": "operator"}  # fmt: skip
TAG = "test"
CORES = CorePlan(gateway=1, gpu_engine=1, cpu_engine=1, cpu_engine_threads=1)
ASK = """
import json, urllib.request
body = {"messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 12, "temperature": 0, "stream": True, "x_dualpace": True}
request = urllib.request.Request("http://127.0.0.1:8000/v1/chat/completions",
    json.dumps(body).encode(), {"Content-Type": "application/json"})
print(urllib.request.urlopen(request, timeout=120).read().decode())
"""
READY = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=5)"


def run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise RuntimeError(f"{shlex.join(command)[:300]}: {done.stdout}{done.stderr}")
    return done


def build() -> None:
    base = os.environ["DUALPACE_BASE_IMAGE"]
    flags = shlex.split(os.environ.get("DUALPACE_BUILD_FLAGS", ""))
    for name, folder in IMAGES.items():
        print(f"building {name}", flush=True)
        run("buildah", "bud", "--isolation", "chroot", "--layers", *flags,
            f"--build-arg=BASE={base}", "-t", f"localhost/dualpace/{name}:{TAG}",
            "-f", str(REPOSITORY / folder / "Dockerfile"), str(REPOSITORY))  # fmt: skip


def manifest(model: Path, folder: Path, shared: Path) -> dict[str, Any]:
    """The pod as the operator renders it, with volumes from this host."""
    spec = ServiceSpec.model_validate(
        {
            "model": {"claim": {"name": "m", "path": model.name}, "servedName": "demo"},
            "nodeSelector": {"a": "b"},
            "gpuEngine": {"device": "cpu", "memory": "3Gi"},
            "cpuEngine": {"memory": "3Gi"},
            "placement": "cpu",
            "dtype": "float32",
            "arena": {"size": "256Mi"},
        }
    )
    image = f"localhost/dualpace/{{}}:{TAG}"
    context = PodContext(
        namespace="default",
        service="chat",
        owner_uid="u",
        node="node",
        node_uid="n",
        spec=spec,
        images=ServiceImages(
            gateway=image.format("gateway"),
            gpu_engine=image.format("gpu-engine"),
            cpu_engine=image.format("cpu-engine"),
        ),
    )
    pod = node_pod(context, CORES, profiled=False)
    hosts = {"model": model.parent, "run": shared, "profile": folder}
    pod["spec"]["volumes"] = [
        {"name": v["name"], "hostPath": {"path": str(hosts[v["name"]])}}
        if v["name"] in hosts
        else v
        for v in pod["spec"]["volumes"]
    ]
    for container in pod["spec"]["containers"]:
        for timed in ("startupProbe", "livenessProbe", "readinessProbe", "lifecycle", "ports"):
            container.pop(timed, None)
    return pod


@contextlib.contextmanager
def playing(pod: dict[str, Any], folder: Path) -> Iterator[str]:
    file = folder / "pod.yaml"
    file.write_text(yaml.safe_dump(pod))
    name = pod["metadata"]["name"]
    try:
        run("podman", "kube", "play", "--network", "none", str(file))
        yield name
    finally:
        run("podman", "kube", "down", str(file), check=False)


def wait_ready(name: str, timeout_s: float = 90) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        ready = run("podman", "exec", f"{name}-gateway", "python", "-c", READY, check=False)
        if ready.returncode == 0:
            return
        if time.monotonic() > deadline:
            for part in ("gateway", "gpu-engine", "cpu-engine"):
                print(part, run("podman", "logs", f"{name}-{part}", check=False))
            raise RuntimeError(f"not ready within {timeout_s:g} s: {ready.stderr[-300:]}")
        time.sleep(1)


def running(name: str) -> dict[str, str]:
    """Container to the time of its start, for those of the pod that run."""
    listed = run("podman", "ps", "--format", "{{.Names}} {{.StartedAt}}").stdout
    pairs = (line.split(maxsplit=1) for line in listed.splitlines())
    return {n.removeprefix(name + "-"): at for n, at in pairs if n.startswith(name + "-")}


def ask(name: str) -> dict[str, Any]:
    """Stream a chat answer; returns its text and the tokens of each engine."""
    stream = run("podman", "exec", f"{name}-gateway", "python", "-c", ASK).stdout
    events = [
        json.loads(line[6:]) for line in stream.splitlines()
        if line.startswith("data: ") and line != "data: [DONE]"
    ]  # fmt: skip
    choices = [choice for event in events for choice in event["choices"]]
    return {
        "chunks": len(events),
        "text": "".join(c["delta"].get("content") or "" for c in choices),
        "tokens": next(c["x_dualpace"]["tokens"] for c in choices if "x_dualpace" in c),
    }


def check(name: str, probes: dict[str, list[str]]) -> None:
    wait_ready(name)
    answer = ask(name)
    print("answer:", json.dumps(answer))
    assert "Paris" in answer["text"], answer
    assert min(answer["tokens"].values()) > 0, "one engine made no token"
    mount = run("podman", "exec", f"{name}-cpu-engine", "sh", "-c", "grep dualpace /proc/mounts")
    assert " /run/dualpace tmpfs " in mount.stdout, mount.stdout
    for engine, command in probes.items():
        print(engine, "probe:", run("podman", "exec", f"{name}-{engine}", *command).returncode)
    who = run("podman", "exec", f"{name}-gpu-engine", "id", "-u").stdout.strip()
    assert who == "65532", who
    for victim in ("cpu-engine", "gpu-engine"):
        before = running(name)
        run("podman", "kill", "--signal", "KILL", f"{name}-{victim}")
        time.sleep(5)
        after = running(name)
        for other in before.keys() - {victim}:
            assert after.get(other) == before[other], f"{other} noticed the end of {victim}"
        print(f"{victim} killed: the others run on, {sorted(after)}")
        if victim == "cpu-engine":
            # podman takes a kill for a wish to stop; a kubelet would start it again.
            run("podman", "start", f"{name}-{victim}")
            wait_ready(name)
            print("ready again; answer:", json.dumps(ask(name)))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", action="store_true")
    if parser.parse_args(arguments).build:
        build()
    model = resolve_model("demo", progress=print).resolve()
    with tempfile.TemporaryDirectory() as folder:
        shared = Path("/dev/shm") / f"dualpace-pod-{uuid.uuid4().hex[:8]}"
        shared.mkdir(mode=0o777)
        shared.chmod(0o1777)
        try:
            pod = manifest(model, Path(folder), shared)
            module = [*("python", "-m", "dualpace.ipc.probe"), "--run-dir=/run/dualpace"]
            probes = {f"{e}-engine": [*module, f"--engine={e}"] for e in ("gpu", "cpu")}
            with playing(pod, Path(folder)) as name:
                check(name, probes)
        finally:
            for left in shared.iterdir():
                left.unlink()
            shared.rmdir()
    print("the pod works")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
