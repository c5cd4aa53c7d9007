"""Every place of a request that an OpenAPI document knows, each with a body in which only that place is unusual."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

Path = tuple[str | int, ...]

MARK: Final = "\x02"
"""Stands in a body for what is put in its place, which may be a literal that `json` would not write."""
_DEEPEST = 6
_SMALL: Final[Mapping[str, Any]] = {"max_tokens": 1, "max_output_tokens": 1, "max_completion_tokens": 1}
"""Where a route knows them, so that a request takes little time."""


@dataclass(frozen=True)
class Place:
    """A place in the body or the query of a request."""

    method: str
    route: str
    path: Path
    schema: Mapping[str, Any]
    body: Any
    """A body with `MARK` at this place; None: the place is a parameter of the query, the first of `path`."""

    def __str__(self) -> str:
        return f"{self.method.upper()} {self.route} {'.'.join(map(str, self.path))}"

    def content(self, literal: str, **more: Any) -> bytes:
        """The body with a literal of JSON at this place, and more fields."""
        body = {**more, **self.body} if isinstance(self.body, dict) else self.body
        return json.dumps(body).replace(json.dumps(MARK), literal).encode()


class Document:
    """An OpenAPI document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._schemas = document["components"]["schemas"]

    def places(self, *kinds: str) -> Iterator[Place]:
        """All places for values of these types of JSON Schema; what may be anything is of every type."""
        for route, methods in self._document["paths"].items():
            for method, operation in methods.items():
                for each in operation.get("parameters", ()):
                    if each["in"] == "query" and self._types(each["schema"]) & set(kinds):
                        yield Place(method, route, (each["name"],), each["schema"], None)
                content = operation.get("requestBody", {}).get("content", {}).get("application/json")
                if content is not None:
                    shown = next(iter(content.get("examples", {}).values()), {"value": None})
                    base = shown["value"] or self._minimal(content["schema"])
                    for path, schema in self._leaves(content["schema"], set(kinds)):
                        yield Place(method, route, path, schema, self._body(content["schema"], base, path))

    def fields(self, route: str) -> set[str]:
        """The names at the top of the body of a POST."""
        schema = self._document["paths"][route]["post"]["requestBody"]["content"]["application/json"]["schema"]
        return set(self._resolved(schema).get("properties", ()))

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        while "$ref" in schema:
            schema = self._schemas[schema["$ref"].rpartition("/")[2]]
        return schema

    def choices(self, schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """The alternatives in a schema; a value must fit one of them."""
        schema = self._resolved(schema)
        parts = schema.get("anyOf") or schema.get("oneOf")
        if parts is None:
            yield schema
        else:
            for part in parts:
                yield from self.choices(part)

    def _types(self, schema: Mapping[str, Any]) -> set[str]:
        found: set[str] = set()
        for choice in self.choices(schema):
            kind = choice.get("type")
            if kind is None and not {"enum", "const"} & choice.keys():
                found |= {"integer", "number", "string"}
            found |= {kind} if isinstance(kind, str) else set(kind or ())
        return found

    def _leaves(self, schema: Mapping[str, Any], kinds: set[str], depth: int = 0) -> Iterator[tuple[Path, Any]]:
        """Paths to places of these types below a schema; 0 is the first item of a list, "x" a key of a mapping."""
        if self._types(schema) & kinds:
            yield (), schema
        if depth >= _DEEPEST:
            return
        for choice in self.choices(schema):
            inner: dict[str | int, Any] = dict(choice.get("properties", {}))
            if "items" in choice:
                inner[0] = choice["items"]
            if choice.get("type") == "object" and choice.get("additionalProperties", True) and not inner:
                more = choice.get("additionalProperties", True)
                inner["1"] = {} if more is True else more
            for name, below in inner.items():
                for path, leaf in self._leaves(below, kinds, depth + 1):
                    yield (name, *path), leaf

    def _minimal(self, schema: Mapping[str, Any]) -> Any:
        """The least that a schema takes."""
        choice = next(self.choices(schema))
        if "const" in choice:
            return choice["const"]
        if "enum" in choice:
            return choice["enum"][0]
        if choice.get("type") == "object":
            fields = choice.get("properties", {})
            return {name: self._minimal(fields[name]) for name in choice.get("required", ())}
        if choice.get("type") == "array":
            return [self._minimal(choice["items"])] * choice.get("minItems", 1) if "items" in choice else []
        return {"integer": 1, "number": 1, "boolean": True, "null": None}.get(choice.get("type", ""), "x")

    def _body(self, schema: Mapping[str, Any], base: Any, path: Path) -> Any:
        if not path:
            return MARK
        head, *rest = path
        for choice in self.choices(schema):
            if isinstance(head, int):
                if "items" in choice:
                    old = base[0] if isinstance(base, list) and base else self._minimal(choice["items"])
                    return [self._body(choice["items"], old, tuple(rest))]
            elif head in choice.get("properties", {}):
                below = choice["properties"][head]
                known = base if isinstance(base, dict) else self._minimal(choice)
                old = known.get(head, self._minimal(below))
                return {**_small(choice), **known, head: self._body(below, old, tuple(rest))}
            elif choice.get("type") == "object" and not choice.get("properties"):
                more = choice.get("additionalProperties", True)
                return {head: self._body({} if more is True else more, None, tuple(rest))}
        return {head: MARK} if isinstance(head, str) else [MARK]


def _small(schema: Mapping[str, Any]) -> dict[str, Any]:
    fields = schema.get("properties", {})
    found = {name: value for name, value in _SMALL.items() if name in fields}
    if {"max_tokens", "max_completion_tokens"} <= found.keys():
        del found["max_completion_tokens"]
    return found
