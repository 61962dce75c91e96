"""A gateway process in front of a scripted backend, otherwise as `python -m dualpace.gateway`.

Arguments are the gateway's own settings. The variable PAUSE_S says how many seconds lie between a
generation's tokens (-1: engines refuse to start; -2: they fail for good once started).
"""

import contextlib
import os
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from dualpace.core.errors import ProtocolError
from dualpace.core.process import StopRequest
from dualpace.core.service import service_main
from dualpace.gateway.http.app import build_app, build_gateway
from dualpace.gateway.http.server import GatewayServer, open_admin_listener, open_listener
from dualpace.gateway.settings import GatewaySettings
from dualpace.gateway.text.model import ServedModel, served_model
from dualpace.testing.fake_backend import FakeBackend, Pause, Step, always


def byte_model() -> ServedModel:
    """A tokenizer of single bytes; token i is byte i in the library's order of them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return served_model(("bytes",), tokenizer)


def serve(settings: GatewaySettings, stop: StopRequest) -> None:
    stop.install_signals()
    pause_s = float(os.environ["PAUSE_S"])
    model = byte_model()
    [letter] = model.tokenizer.encode("a").ids
    steps: list[Step] = [letter, Pause(pause_s)] * 16
    backend = FakeBackend(always(*steps), vocab_size=256)
    if pause_s == -2:
        backend.failure.put_nowait(ProtocolError("the engines changed"))
    elif pause_s < 0:
        backend.start_error = ProtocolError("the engines are of another release")
    gateway = build_gateway(settings, model, backend)
    with open_listener(settings) as listener, contextlib.ExitStack() as sockets:
        admin = open_admin_listener(settings)
        if admin is not None:
            sockets.enter_context(admin)
        server = GatewayServer(build_app(gateway), gateway, listener, stop, admin_listener=admin)
        server.run()
    assert backend.stopped
    backend.assert_nothing_leaked()
    gateway.lifecycle.raise_failure()


if __name__ == "__main__":
    sys.exit(service_main("gateway", GatewaySettings, serve))
