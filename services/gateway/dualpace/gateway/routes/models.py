"""GET /v1/models and /v1/models/{id}."""

from typing import Any

from starlette.responses import Response

from dualpace.gateway.errors import json_response, model_not_found
from dualpace.gateway.serving import Gateway


def list_models(gateway: Gateway) -> Response:
    """List the served model under each name. Raises ApiError 503 before the engines are there."""
    cards = [_card(gateway, name) for name in gateway.model.names]
    return json_response({"object": "list", "data": cards})


def one_model(gateway: Gateway, name: str) -> Response:
    """Describe one model. Raises ApiError 404, or 503 before the engines are there."""
    if name not in gateway.model.names:
        raise model_not_found(name)
    return json_response(_card(gateway, name))


def _card(gateway: Gateway, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": gateway.model.created,
        "owned_by": "dualpace",
        "root": gateway.model.names[0],
        "parent": None,
        # What a request can really have: KV memory may allow less than the model.
        "max_model_len": gateway.lifecycle.node_info().max_model_len,
        "permission": [],
    }
