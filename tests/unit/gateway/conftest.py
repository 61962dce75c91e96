"""A real gateway over real HTTP, in a thread, in front of a scripted backend; and tokenizers."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import httpx2
import openai
import pytest
import uvicorn
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from dualpace.checkpoint import resolve_model
from dualpace.gateway.http.app import build_app, build_gateway
from dualpace.gateway.settings import GatewaySettings
from dualpace.gateway.text.model import ServedModel, served_model
from dualpace.gateway.text.model_loading import load_model
from dualpace.testing.fake_backend import FakeBackend, Script, always
from dualpace.tracing import Tracing

CORPUS = (
    "The quick brown fox jumps over the lazy dog.",
    "  leading spaces, trailing spaces  ",
    "tabs\tand\nnewlines\r\n\n\nin rows",
    "naïve café, Ærøskøbing, İstanbul, groß",
    "combining: e\u0301 a\u030a o\u0308\u0304 n\u0303",
    "Съешь ещё этих мягких французских булок",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία",
    "בראשית ברא אלהים את השמים",
    "بسم الله الرحمن الرحيم، ٣٤٥",
    "नमस्ते दुनिया, क्षत्रिय",
    "ภาษาไทยไม่มีช่องว่าง",
    "አማርኛ ፊደል",
    "བོད་སྐད།",
    "我能吞下玻璃而不伤身体。",
    "いろはにほへと チリヌルヲ、漢字かな交じり",
    "한국어 조선말 \u1112\u1161\u11ab",
    "family 👨‍👩‍👧‍👦, flags 🇪🇪🇯🇵, skin 👍🏽, heart ❤️‍🔥, keycap 5️⃣",
    "rare planes: 𐎀𐎁𐎂 𐍈 𠜎 🜁",
    "zero width: a\u200bb\u200cc\u200dd\ufeffe",
    'def f(x: int) -> str:\n    return f"{x!r}"  # ½ ÷ ¾',
)

EOS = 2
"""Of the demo model."""
ANSWER = CORPUS[14]
"""What `server` always says."""

ByteFallbackTokenizer = Tokenizer
"""A tokenizer as Llama 2's: "▁" for spaces, `<0xE2>` for bytes, one leading space stripped."""


class Serve(Protocol):
    """Starts a gateway for a test."""

    def __call__(self, script: Script | None = ..., **settings: Any) -> "LiveServer": ...


class LiveServer:
    """A gateway that listens on a free port, in a thread of its own."""

    def __init__(
        self,
        model: ServedModel,
        backend: FakeBackend,
        settings: GatewaySettings,
        tracing: Tracing | None = None,
    ) -> None:
        self.backend = backend
        self.gateway = build_gateway(settings, model, backend, tracing=tracing)
        config = uvicorn.Config(
            build_app(self.gateway),
            port=0,
            log_config=None,
            access_log=False,
            lifespan="on",
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        wait_until(lambda: self._server.started)
        self.port: int = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx2.Client(base_url=self.url, timeout=20)
        wait_until(lambda: backend.started or backend.start_error is not None)
        wait_until(lambda: self.num_tasks() <= 4)
        self._tasks_at_rest = self.num_tasks()

    def _run(self) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            await self._server.serve()

        asyncio.run(serve())

    def call(self, function: Callable[[], Any]) -> Any:
        """Run a function, or what a coroutine function returns, on the server's loop."""

        async def run() -> Any:
            result = function()
            return await result if asyncio.iscoroutine(result) else result

        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(20)

    def num_tasks(self) -> int:
        """Return how many tasks there are on the server's loop."""
        return int(self.call(lambda: len(asyncio.all_tasks())))

    def post(self, path: str, body: Any, **options: Any) -> httpx2.Response:
        return self.client.post(path, json=body, **options)

    def chat(self, content: Any = "Hi", **fields: Any) -> httpx2.Response:
        body = {"messages": [{"role": "user", "content": content}], **fields}
        return self.post("/v1/chat/completions", body)

    def complete(self, prompt: Any = "Hi", **fields: Any) -> httpx2.Response:
        return self.post("/v1/completions", {"prompt": prompt, **fields})

    def assert_at_rest(self) -> None:
        """Assert that no request left a task or a running generation behind."""
        wait_until(lambda: self.num_tasks() <= self._tasks_at_rest)
        self.call(self.backend.assert_nothing_leaked)

    def close(self) -> None:
        self.client.close()
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive(), "the server did not stop"


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for a condition that another thread makes true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def sse_data(response: httpx2.Response) -> list[str]:
    """Return the data of every event of a stream; comments are no events."""
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("\n\n")
    events = response.text.removesuffix("\n\n").split("\n\n")
    return [event.removeprefix("data: ") for event in events if not event.startswith(":")]


def chunks_of(response: httpx2.Response) -> list[Any]:
    """Return the chunks of a stream that ended well."""
    assert response.status_code == 200, response.text
    data = sse_data(response)
    assert data[-1] == "[DONE]"
    return [json.loads(item) for item in data[:-1]]


def ids_of(model: ServedModel, text: str) -> list[int]:
    """Return a text's tokens."""
    return model.tokenizer.encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="session")
def demo_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model, fetched once for all tests."""
    return resolve_model("demo", progress=lambda _: None)


@pytest.fixture(scope="session")
def demo_model(demo_path: Path) -> ServedModel:
    """The demo model's tokenizer and template; its publisher gives no sampling defaults."""
    return load_model(demo_path, ("demo", "other-name"))


@pytest.fixture(scope="session")
def byte_fallback() -> ByteFallbackTokenizer:
    """A small tokenizer trained here; id 0 is <unk>, 1 <s>, 2 </s>, then 256 bytes."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    latin = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,!?'\"-()▁éäß"
    trainer = trainers.BpeTrainer(
        vocab_size=200, show_progress=False, initial_alphabet=list(latin), limit_alphabet=len(latin)
    )
    trained.train_from_iterator(CORPUS[:4], trainer)
    parts = json.loads(trained.to_str())["model"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [token for token in parts["vocab"] if token not in tokens]
    merges = [tuple(merge) for merge in parts["merges"]]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<unk>", "<s>", "</s>")])
    return tokenizer


@pytest.fixture(scope="session")
def plain_model(byte_fallback: ByteFallbackTokenizer) -> ServedModel:
    """A model without a chat template, on the byte-fallback tokenizer; </s> ends it."""
    return served_model(("plain",), byte_fallback, eos_token_ids=(2,))


@pytest.fixture
def serve(demo_model: ServedModel, tmp_path: Path) -> Iterator[Serve]:
    servers: list[LiveServer] = []

    def start(script: Script | None = None, **settings: Any) -> LiveServer:
        model = settings.pop("model", demo_model)
        backend = settings.pop("backend", None) or FakeBackend(script or always())
        tracing = settings.pop("tracing", None)
        made = GatewaySettings(**{"model": "-", "run_dir": str(tmp_path), **settings})
        servers.append(LiveServer(model, backend, made, tracing))
        return servers[-1]

    yield start
    for server in servers:
        try:
            server.assert_at_rest()
        finally:
            server.close()


@pytest.fixture
def server(serve: Serve, demo_model: ServedModel) -> LiveServer:
    """A gateway whose every answer is ANSWER."""
    return serve(always(*ids_of(demo_model, ANSWER), EOS))


@pytest.fixture
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    """The official client of that gateway, without retries."""
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as made:
        yield made
