"""A real Kubernetes control plane on loopback: etcd, kube-apiserver, kube-controller-manager.

The binaries of Kubernetes come from KUBEBUILDER_ASSETS, any version; etcd from there or PATH. No
kubelet and no scheduler: tests play those (`kubelet`). All state is thrown away at the end.
"""

import contextlib
import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CONTROLLERS = (
    "garbagecollector,deployment,replicaset,job,endpoint,endpointslice,namespace,podgc,disruption"
)
OPERATOR_USER = "system:serviceaccount:dualpace-system:dualpace"
"""The service account that the chart makes, as a user with a token of its own."""


def missing() -> str | None:
    """Return what is not installed for a control plane, or None."""
    assets = os.environ.get("KUBEBUILDER_ASSETS", "")
    for name in ("kube-apiserver", "kube-controller-manager"):
        if not assets or not (Path(assets) / name).exists():
            return f"no {name} in KUBEBUILDER_ASSETS ({assets or 'unset'})"
    if _etcd() is None:
        return "no etcd, neither in KUBEBUILDER_ASSETS nor in PATH (Debian: etcd-server)"
    return None


def _etcd() -> str | None:
    beside = Path(os.environ.get("KUBEBUILDER_ASSETS", "")) / "etcd"
    return str(beside) if beside.exists() else shutil.which("etcd")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Connections:
    """Connections that are kept: a handshake costs more than most requests."""

    def __init__(self, host: str, ca: Path) -> None:
        self._host, self._ca = host, ca
        self._idle: list[http.client.HTTPSConnection] = []

    def exchange(
        self, method: str, path: str, payload: bytes | None, headers: dict[str, str]
    ) -> tuple[int, str]:
        """Return status and text of an answer. A kept connection may turn out to be closed."""
        while True:
            try:
                connection, kept = self._idle.pop(), True
            except IndexError:
                connection, kept = self._make(), False
            try:
                connection.request(method, path, payload, headers)
                answer = connection.getresponse()
                text = answer.read().decode()
            except (http.client.HTTPException, OSError):
                connection.close()
                if not kept:
                    raise
            else:
                self._idle.append(connection)
                return answer.status, text

    def _make(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self._ca))
        return http.client.HTTPSConnection(self._host, timeout=30, context=context)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


@dataclass(frozen=True, kw_only=True)
class ControlPlane:
    """A running one, and how to talk to it."""

    server: str
    ca: Path
    connections: Connections
    admin_kubeconfig: Path
    operator_kubeconfig: Path
    audit_log: Path
    """One JSON line for every request of the operator's account."""
    restart_apiserver: Callable[[], None]
    """Stops it, starts it again, and returns once it is ready."""

    def operator_requests(self) -> list[dict[str, Any]]:
        """What the operator has asked of the API server so far, oldest first."""
        lines = self.audit_log.read_text().splitlines() if self.audit_log.exists() else []
        return [json.loads(line) for line in lines]

    def request(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json"
    ) -> Any:
        """Send a request as administrator; returns the parsed answer, None for 404.

        Raises OSError or HTTPException while the server is away.
        """
        payload = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": "Bearer admintoken", "Content-Type": content_type}
        status, text = self.connections.exchange(method, path, payload, headers)
        if status == 404:
            return None
        if status >= 400:
            raise RuntimeError(f"{method} {path}: {status} {text}")
        return json.loads(text)

    def items(self, path: str) -> list[dict[str, Any]]:
        answer = self.request("GET", path)
        return [] if answer is None else list(answer["items"])

    def merge(self, path: str, body: Mapping[str, Any]) -> Any:
        return self.request("PATCH", path, body, "application/merge-patch+json")


@contextlib.contextmanager
def control_plane(
    prepare: Callable[[ControlPlane], None] = lambda _: None,
) -> Iterator[ControlPlane]:
    """Start all three, yield, stop them.

    `prepare` runs before the controllers start: the garbage collector looks for new kinds of
    resources only every 30 s.
    """
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dualpace-kube-")))
        etcd_port, peer_port, port = free_port(), free_port(), free_port()
        (home / "tokens.csv").write_text(
            f'admintoken,admin,1,"system:masters"\noperatortoken,{OPERATOR_USER},2\n'
        )
        subprocess.run(
            ["openssl", "genrsa", "-out", home / "sa.key", "2048"], check=True, capture_output=True
        )
        client = f"http://127.0.0.1:{etcd_port}"
        peer = f"http://127.0.0.1:{peer_port}"
        etcd = _etcd()
        assert etcd is not None
        _start(
            stack,
            home / "etcd.log",
            etcd,
            "--name=t",
            f"--data-dir={home}/etcd",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=t={peer}",
            "--unsafe-no-fsync",
        )
        servers = [_start_apiserver(stack, home, client, port)]

        def restart() -> None:
            servers[-1]()
            servers.append(_start_apiserver(stack, home, client, port))
            _wait_ready(plane, home / "apiserver.log")

        ca = home / "certs" / "apiserver.crt"
        connections = Connections(f"127.0.0.1:{port}", ca)
        stack.callback(connections.close)
        plane = ControlPlane(
            restart_apiserver=restart,
            server=f"https://127.0.0.1:{port}",
            ca=ca,
            connections=connections,
            admin_kubeconfig=home / "admin.json",
            operator_kubeconfig=home / "operator.json",
            audit_log=home / "audit.log",
        )
        _wait_ready(plane, home / "apiserver.log")
        for path, token in (
            (plane.admin_kubeconfig, "admintoken"),
            (plane.operator_kubeconfig, "operatortoken"),
        ):
            path.write_text(json.dumps(_kubeconfig(plane, token)))
        prepare(plane)
        _start(
            stack,
            home / "controllers.log",
            str(Path(os.environ["KUBEBUILDER_ASSETS"]) / "kube-controller-manager"),
            f"--kubeconfig={plane.admin_kubeconfig}",
            "--leader-elect=false",
            "--port=0",
            "--secure-port=0",
            "--concurrent-gc-syncs=5",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
            f"--controllers={_CONTROLLERS}",
        )
        yield plane


def _start_apiserver(
    stack: contextlib.ExitStack, home: Path, etcd: str, port: int
) -> Callable[[], None]:
    (home / "audit.json").write_text(
        json.dumps(
            {
                "apiVersion": "audit.k8s.io/v1",
                "kind": "Policy",
                "omitStages": ["RequestReceived", "ResponseStarted"],
                "rules": [{"level": "Metadata", "users": [OPERATOR_USER]}, {"level": "None"}],
            }
        )
    )
    return _start(
        stack,
        home / "apiserver.log",
        str(Path(os.environ["KUBEBUILDER_ASSETS"]) / "kube-apiserver"),
        f"--etcd-servers={etcd}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={home}/certs",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-signing-key-file={home}/sa.key",
        f"--service-account-key-file={home}/sa.key",
        "--service-cluster-ip-range=10.96.0.0/16",
        f"--token-auth-file={home}/tokens.csv",
        "--authorization-mode=RBAC",
        "--disable-admission-plugins=ServiceAccount",
        "--allow-privileged=true",
        f"--audit-policy-file={home}/audit.json",
        f"--audit-log-path={home}/audit.log",
        "--max-requests-inflight=800",
        "--max-mutating-requests-inflight=400",
    )


def _start(stack: contextlib.ExitStack, log: Path, *command: str) -> Callable[[], None]:
    """Start a program until the stack ends; returns what stops it earlier."""
    output = stack.enter_context(log.open("wb"))
    process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def stop() -> None:
        process.kill()  # nothing of it is kept, and open watches would make it wait
        process.wait()

    stack.callback(stop)
    return stop


def _wait_ready(plane: ControlPlane, log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            context = ssl.create_default_context(cafile=str(plane.ca))
            request = urllib.request.Request(
                plane.server + "/readyz", headers={"Authorization": "Bearer admintoken"}
            )
            with urllib.request.urlopen(request, context=context, timeout=5) as answer:
                if answer.read() == b"ok":
                    return
        time.sleep(0.2)
    raise RuntimeError(f"kube-apiserver is not ready:\n{log.read_text()[-3000:]}")


def _kubeconfig(plane: ControlPlane, token: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "c",
                "cluster": {"server": plane.server, "certificate-authority": str(plane.ca)},
            }
        ],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
