"""/tokenize, /detokenize, /load, /ping."""

import json
from pathlib import Path
from typing import Any

import pytest

from dualpace.testing.fake_backend import Hold, always
from tests.unit.gateway.conftest import CORPUS, LiveServer, Serve
from tests.unit.gateway.test_overload import Background

EOS = 2


@pytest.fixture
def server(serve: Serve) -> LiveServer:
    return serve(always(1000, EOS))


def test_tokens_and_back(server: LiveServer) -> None:
    for text in CORPUS:
        found = server.post("/tokenize", {"prompt": text, "return_token_strs": True}).json()
        assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
        assert found["max_model_len"] == 2048
        back = server.post("/detokenize", {"tokens": found["tokens"]}).json()
        assert back == {"prompt": text}


def test_conversations_become_the_gold_tokens(server: LiveServer) -> None:
    gold = json.loads((Path(__file__).parents[2] / "gold/smollm2_greedy.json").read_text())
    conversations = [entry for entry in gold["prompts"] if entry["messages"]]
    assert conversations
    for entry in conversations:
        found = server.post("/tokenize", {"messages": entry["messages"]}).json()
        assert found["tokens"] == entry["prompt_token_ids"]
        assert found["token_strs"] is None


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": [1, 2]}, "prompt"),
        ("/tokenize", {"prompt": ["a", "b"]}, "prompt"),
        ("/tokenize", {"prompt": "x", "return_token_strs": 1}, "return_token_strs"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": []}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {"tokens": [49152]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [10**4000]}, "tokens"),
    ],
)
def test_faults_are_named(server: LiveServer, path: str, body: Any, param: str) -> None:
    response = server.post(path, body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_models_that_are_not_served_are_not_found(server: LiveServer) -> None:
    for path, field in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [5]})):
        assert server.post(path, {"model": "other", **field}).status_code == 404
        assert server.post(path, {"model": "demo", **field}).status_code == 200


def test_load_counts_what_is_worked_on(serve: Serve) -> None:
    server = serve(always(Hold(), EOS))
    assert server.client.get("/load").json() == {"server_load": 0}
    request = Background(server)
    assert server.client.get("/load").json()["server_load"] >= 1
    server.backend.let_go()
    request.join()
    assert server.client.get("/load").json() == {"server_load": 0}


def test_ping_is_health(server: LiveServer) -> None:
    for method in ("GET", "POST"):
        assert server.client.request(method, "/ping").status_code == 200
    server.backend.unready = "gone"
    assert server.client.get("/ping").status_code == 503
