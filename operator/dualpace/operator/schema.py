"""From pydantic's JSON schema to what an API server takes: a structural OpenAPI v3 schema.

Structural schemas have no references, no `null` type, no `const`, and no tuples; every part has a
type, and `anyOf` may not carry one (Kubernetes' CustomResourceDefinition documentation). What a
model needs beyond this module raises at once, so that no part of a schema is lost silently.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from dualpace.operator.model.base import SpecModel

_KEPT = frozenset(
    {
        "default",
        "description",
        "enum",
        "format",
        "maxItems",
        "maxLength",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "maxProperties",
        "minimum",
        "pattern",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type",
    }
)
_DROPPED = frozenset({"title", "additionalProperties"})
_PARTS = frozenset({"type", "properties", "required", "items", "$defs"})
_RENAMED_FOR_MAPS = {"minLength": "minProperties", "maxLength": "maxProperties"}


def structural_schema(model: type[SpecModel]) -> dict[str, Any]:
    """Return the structural schema of a model. Raises ValueError for what it cannot express."""
    document = model.model_json_schema(by_alias=True)
    return _convert(document, document.get("$defs", {}), _rules_by_title(model))


def _rules_by_title(model: type[BaseModel]) -> dict[str, type[SpecModel]]:
    """Return every model reachable from this one, by the name that the JSON schema uses."""
    found: dict[str, type[SpecModel]] = {}

    def visit(annotation: Any) -> None:
        if inspect.isclass(annotation) and issubclass(annotation, SpecModel):
            if annotation.__name__ not in found:
                found[annotation.__name__] = annotation
                for field in annotation.model_fields.values():
                    visit(field.annotation)
            return
        for part in getattr(annotation, "__args__", ()):
            visit(part)

    visit(model)
    return found


def _convert(
    node: Mapping[str, Any], defs: Mapping[str, Any], models: Mapping[str, type[SpecModel]]
) -> dict[str, Any]:
    if "$ref" in node:
        target = defs[node["$ref"].rsplit("/", 1)[-1]]
        return _convert({**target, **{k: v for k, v in node.items() if k != "$ref"}}, defs, models)
    if "anyOf" in node:
        return _convert(_without_null(node), defs, models)
    if "const" in node:
        return _convert(_const_as_enum(node), defs, models)
    result = _own_keywords(node)
    if node["type"] == "array":
        result["items"] = _convert(node["items"], defs, models)
    if node["type"] == "integer":
        result["format"] = "int64"
    if node["type"] == "object":
        result |= _object(node, defs, models)
        if "default" in result:  # the parts have defaults of their own
            result["default"] = {}
    return result


def _own_keywords(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of a schema that are about the value itself."""
    result: dict[str, Any] = {"type": node["type"]}
    for key, value in node.items():
        if key == "default" and value == "":
            continue  # the same as none; and Kubernetes 1.20 takes it for null
        if key in _KEPT and value is not None:
            result[_key(key, node)] = value
        elif key not in _KEPT | _DROPPED | _PARTS:
            raise ValueError(f"{node.get('title', 'a schema')}: no structural form for {key!r}")
    if "description" in result:
        result["description"] = " ".join(result["description"].split())
    return result


def _key(key: str, node: Mapping[str, Any]) -> str:
    return _RENAMED_FOR_MAPS.get(key, key) if node["type"] == "object" else key


def _without_null(node: Mapping[str, Any]) -> dict[str, Any]:
    """`X | None` becomes X: an absent field is how a custom resource says None."""
    parts = [part for part in node["anyOf"] if part.get("type") != "null"]
    if len(parts) != 1:
        raise ValueError(f"{node.get('title')}: a union has no structural form")
    rest = {k: v for k, v in node.items() if k != "anyOf"}
    return {**parts[0], **rest}


def _const_as_enum(node: Mapping[str, Any]) -> dict[str, Any]:
    return {**{k: v for k, v in node.items() if k != "const"}, "enum": [node["const"]]}


def _object(
    node: Mapping[str, Any], defs: Mapping[str, Any], models: Mapping[str, type[SpecModel]]
) -> dict[str, Any]:
    if "properties" not in node:
        values = node.get("additionalProperties")
        if not isinstance(values, Mapping):
            raise ValueError(f"{node.get('title')}: a map needs the type of its values")
        return {"additionalProperties": _convert(values, defs, models)}
    result: dict[str, Any] = {
        "properties": {k: _convert(v, defs, models) for k, v in node["properties"].items()}
    }
    if node.get("required"):
        result["required"] = node["required"]
    model = models[node["title"]]
    rules = [r for r in model.RULES if r.cel is not None]
    if rules:
        result["x-kubernetes-validations"] = [{"rule": r.cel, "message": r.message} for r in rules]
    return result
