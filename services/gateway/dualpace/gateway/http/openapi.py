"""Request bodies for /openapi.json: handlers read them on their own, so FastAPI cannot know."""

from typing import Any

from pydantic import BaseModel

STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}
"""What a route answers with `stream`, beside the JSON that it answers without."""


def request_body(model: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI description of a JSON body."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})
    content = {"application/json": {"schema": _inlined(schema, definitions)}}
    return {"requestBody": {"required": True, "content": content}}


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    """Put definitions where they are referred to; references would need their final place."""
    if isinstance(schema, list):
        return [_inlined(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return _inlined(definitions[reference.removeprefix("#/$defs/")], definitions)
    return {key: _inlined(value, definitions) for key, value in schema.items()}
