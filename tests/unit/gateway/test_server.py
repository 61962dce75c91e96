"""The process: exit statuses, signals, inherited sockets, a supervisor that dies."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from dualpace.api import Client as GrpcClient
from tests.unit.gateway.conftest import wait_until

SCRIPT = Path(__file__).with_name("scripted_server.py")


class Process:
    """A gateway process on an inherited socket, so that its port is known before it runs."""

    def __init__(self, pause_s: float, *flags: str, pass_fds: tuple[int, ...] = ()) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self.url = f"http://127.0.0.1:{self.address[1]}"
        fd = self._listener.fileno()
        self.process = subprocess.Popen(
            [sys.executable, SCRIPT, "--model=-", f"--listen-fd={fd}", *flags],
            pass_fds=(fd, *pass_fds),
            env={**os.environ, "PAUSE_S": str(pause_s)},
            stderr=subprocess.PIPE,
            text=True,
        )
        self._listener.close()

    def stream(self) -> tuple[threading.Thread, list[str]]:
        """Begin a stream; return once its first text is there. Lines are added as they come."""
        lines: list[str] = []

        def read() -> None:
            body = {"prompt": "x", "stream": True}
            with (
                httpx2.Client(base_url=self.url, timeout=20) as client,
                client.stream("POST", "/v1/completions", json=body) as response,
            ):
                lines.extend(line for line in response.iter_lines() if line)

        thread = threading.Thread(target=read)
        thread.start()
        return thread, lines

    def end(self) -> tuple[int, str]:
        """Wait for the end; return exit status and log."""
        _, log = self.process.communicate(timeout=20)
        return self.process.returncode, log


Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Process] = []

    def run(pause_s: float, *flags: str, pass_fds: tuple[int, ...] = ()) -> Process:
        flags = (f"--run-dir={tmp_path}", *flags)
        started.append(Process(pause_s, *flags, pass_fds=pass_fds))
        return started[-1]

    yield run
    for process in started:
        process.process.kill()
        assert process.process.stderr is not None
        if not process.process.stderr.closed:
            process.process.communicate()


def wait_for_stream(process: Process) -> tuple[threading.Thread, list[str]]:
    # The socket is open before anything is loaded: this waits rather than fails.
    assert httpx2.get(process.url + "/livez", timeout=20).status_code == 200
    wait_until(lambda: httpx2.get(process.url + "/readyz").status_code == 200)
    thread, lines = process.stream()
    wait_until(lambda: not metrics(process).endswith(" 0.0"))
    return thread, lines


def metrics(process: Process) -> str:
    page = httpx2.get(process.url + "/metrics").text
    return next(line for line in page.splitlines() if line.startswith("vllm:generation_tokens_"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_a_stream_finish_and_exits_with_0(
    start: Start, number: signal.Signals
) -> None:
    process = start(0.05)
    thread, lines = wait_for_stream(process)
    process.process.send_signal(number)
    status, log = process.end()
    thread.join(5)
    assert lines[-1] == "data: [DONE]"
    assert status == 0, log
    assert f"stopping: {number.name}" in log


def test_after_the_grace_streams_end_with_an_error_and_the_status_is_still_0(
    start: Start,
) -> None:
    process = start(30, "--drain-grace-s=0.2")
    thread, lines = wait_for_stream(process)
    process.process.send_signal(signal.SIGTERM)
    status, log = process.end()
    thread.join(5)
    assert "shutting down" in lines[-1]
    assert status == 0, log


def test_a_second_signal_ends_the_grace(start: Start) -> None:
    process = start(30, "--drain-grace-s=60")
    thread, lines = wait_for_stream(process)
    process.process.send_signal(signal.SIGTERM)
    wait_until(lambda: httpx2.get(process.url + "/readyz").status_code == 503)
    process.process.send_signal(signal.SIGTERM)
    status, log = process.end()
    thread.join(5)
    assert "shutting down" in lines[-1]
    assert status == 0, log


def test_when_the_supervisor_dies_there_is_no_grace(start: Start) -> None:
    read_end, write_end = os.pipe()
    process = start(30, "--drain-grace-s=60", f"--lifeline-fd={read_end}", pass_fds=(read_end,))
    os.close(read_end)
    thread, _ = wait_for_stream(process)
    os.close(write_end)
    status, log = process.end()
    thread.join(5)
    assert status == 0, log


def test_engines_that_refuse_end_the_process_with_1(start: Start) -> None:
    process = start(-1)
    status, log = process.end()
    assert status == 1
    assert "the engines are of another release" in log.splitlines()[-1]


def test_engines_that_fail_for_good_end_the_process_with_1(start: Start) -> None:
    process = start(-2)
    status, log = process.end()
    assert status == 1
    assert "the engines changed" in log.splitlines()[-1]


def test_offers_of_another_protocol_do_not_cost_the_body(start: Start) -> None:
    """As Java's HttpClient sends its first request, in one packet or with the body after it."""
    process = start(0)
    body = b'{"prompt": "x"}'
    head = (
        b"POST /v1/completions HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nHost: x\r\n"
        b"HTTP2-Settings: AAEAAEAA\r\nUpgrade: h2c\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    )
    wait_until(lambda: httpx2.get(f"{process.url}/readyz").status_code == 200)
    for parts in ((head + body,), (head, body)):
        with socket.create_connection(process.address, timeout=10) as connection:
            for part in parts:
                connection.sendall(part)
                time.sleep(0.1)
            assert connection.recv(12) == b"HTTP/1.1 200"
    process.process.send_signal(signal.SIGTERM)
    status, log = process.end()
    assert status == 0, log


def run_module(*flags: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "dualpace.gateway", *flags],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.returncode, done.stderr


def test_a_setting_that_is_wrong_ends_the_start_with_2_and_its_name(tmp_path: Path) -> None:
    needed = ("--model=m", f"--run-dir={tmp_path}")
    for flags, words in (
        (needed[:1], "--run-dir"),
        ((*needed, "--port=70000"), "port: 70000"),
        ((*needed, "--port=x"), "--port"),
        ((*needed, "--max-choices=0"), "max_choices must be positive"),
        ((*needed, "--served-model-name=a,,b"), "served_model_name"),
        ((*needed, "--nonsense=1"), "--nonsense"),
        (("--model=m", "--run-dir=/no/such/dir"), "/no/such/dir"),
    ):
        status, log = run_module(*flags)
        assert status == 2, log
        assert words in log


def test_the_gateway_needs_no_torch() -> None:
    code = "import dualpace.gateway.__main__, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_a_model_that_is_not_there_ends_the_start_with_1(tmp_path: Path) -> None:
    status, log = run_module(f"--model={tmp_path}/none", f"--run-dir={tmp_path}")
    assert status == 1
    assert f"{tmp_path}/none" in log.splitlines()[-1]


def test_the_operators_port_shows_and_drains(start: Start) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as free,
        socket.create_server(("127.0.0.1", 0)) as also_free,
    ):
        port, grpc_port = free.getsockname()[1], also_free.getsockname()[1]
    process = start(0.05, f"--admin-port={port}", f"--grpc-port={grpc_port}")
    thread, lines = wait_for_stream(process)
    with GrpcClient(f"127.0.0.1:{grpc_port}", timeout_s=10) as client:
        assert list(client.model_info().names) == ["bytes"]
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as admin:
        state = admin.get("/state").json()
        assert state["unready_reason"] is None
        assert set(state["engines"]) == {"gpu", "cpu"}
        assert state["waiting"] == {"generations": 0, "prompt_tokens": 0}
        assert "vllm:num_requests_running" in admin.get("/metrics").text
        assert admin.get("/livez").status_code == 200
        assert admin.post("/v1/completions", json={"prompt": "x"}).status_code == 404
        with httpx2.Client(base_url=process.url, timeout=10) as public:
            assert public.get("/state").status_code == 404
            assert public.post("/drain").status_code == 404
        assert admin.post("/drain").status_code == 202
        wait_until(lambda: admin.get("/readyz").status_code == 503)
    thread.join(20)
    assert lines[-1] == "data: [DONE]"
    status, log = process.end()
    assert status == 0, log
    assert "the admin port" in log
