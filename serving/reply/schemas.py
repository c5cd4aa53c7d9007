"""Looking into the JSON schemas of functions' parameters."""

from collections.abc import Mapping
from typing import Any

_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float),
    "null": type(None),
}  # fmt: skip
_SHARED = ("$defs", "definitions", "x-guidance")
"""The context of a schema that its parts need."""
_DEEPEST = 16
"""Levels of references that are followed."""


def parameter_schemas(schema: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The schema of each parameter by name, with the definitions it may refer to."""
    shared = {name: schema[name] for name in _SHARED if name in schema}
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {
        key: {**shared, **inner} if isinstance(inner, Mapping) else dict(shared) for key, inner in properties.items()
    }


def item_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of the items of a list, with the definitions it may refer to."""
    items = schema.get("items")
    shared = {name: schema[name] for name in _SHARED if name in schema}
    return {**shared, **items} if isinstance(items, Mapping) else shared


def parameter_types(schema: Mapping[str, Any]) -> dict[str, set[str]]:
    """The types of each parameter by name, and under an empty name those of parameters that have none of their own."""
    types = {key: schema_types(each) for key, each in parameter_schemas(schema).items()}
    others = schema.get("additionalProperties")
    if isinstance(others, Mapping) and others:
        shared = {name: schema[name] for name in _SHARED if name in schema}
        types.setdefault("", schema_types({**shared, **others}))
    return types


def resolved(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that this one refers to, if it is but a reference."""
    for _ in range(_DEEPEST):
        reference = schema.get("$ref")
        found = _resolve(reference, schema) if isinstance(reference, str) else None
        if not isinstance(found, Mapping):
            break
        shared = {name: schema[name] for name in _SHARED if name in schema}
        schema = {**shared, **found}
    return schema


def schema_types(schema: Mapping[str, Any]) -> set[str]:
    """The types of JSON that a schema allows, as far as it says so; none: any."""
    return _types(schema, schema, _DEEPEST)


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> set[str]:
    if not isinstance(schema, Mapping) or not depth:
        return set()
    given = schema.get("type")
    if given is not None:
        return {given} if isinstance(given, str) else {each for each in given if isinstance(each, str)}
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return _types(_resolve(reference, root), root, depth - 1)
    for name in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(name), list):
            found = [_types(each, root, depth - 1) for each in schema[name]]
            return set().union(*found) if all(found) else set()
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else []
    return {name for value in values for name in _KINDS if is_of_type(value, {name})}


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for name in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def is_of_type(value: Any, types: set[str]) -> bool:
    """Whether a value is of one of JSON's types."""
    if isinstance(value, bool):
        return "boolean" in types
    return any(isinstance(value, _KINDS[name]) for name in types if name in _KINDS)
