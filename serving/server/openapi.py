"""The OpenAPI document, made from the routes and the Structs of their bodies."""

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any, get_args, get_origin

import msgspec
from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute

from jaxllm.serving.http.body.base import TEMPLATE_FIELDS, Body, Ignored, refused_fields
from jaxllm.serving.http.operation import Operation
from jaxllm.serving.server.interfaces import OPERATIONS, ROUTERS
from jaxllm.serving.server.request_examples import examples_of
from jaxllm.version import __version__

_UPLOAD = {
    "type": "object",
    "properties": {"file": {"type": "string", "format": "binary"}, "purpose": {"enum": ["batch"]}},
    "required": ["file", "purpose"],
}

_ROUTES = tuple(route for router in ROUTERS for route in router.routes)
OPENAPI_URL = "/openapi.json"


def openapi(*, with_keys: bool, strict: bool = False, routes: Sequence[BaseRoute] = _ROUTES) -> dict[str, Any]:
    """The document, OpenAPI 3.1, of these routes: the interfaces', and others.

    `with_keys` if requests need one, `strict` if unknown fields are rejected.
    """
    document = get_openapi(
        title="jaxllm", version=__version__, description="OpenAI's API with vLLM's fields.", routes=routes
    )
    for operation in OPERATIONS:
        path = document["paths"][operation.path.replace(":path}", "}")]
        for method in operation.methods:
            path[method.lower()] |= _operation(operation, with_keys=with_keys)
    components = document.setdefault("components", {})
    components["schemas"] = {**components.get("schemas", {}), **_schemas(strict=strict)}
    if with_keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return document


def _schemas(*, strict: bool) -> dict[str, Any]:
    """The types of all bodies."""
    kinds = {kind for each in OPERATIONS for kind in each.bodies}
    _, schemas = msgspec.json.schema_components(
        sorted(kinds, key=lambda kind: kind.__name__), ref_template="#/components/schemas/{name}"
    )
    for kind in _structs(kinds):
        _describe(schemas[kind.__name__], kind, strict=strict)
    return schemas


def _operation(operation: Operation, *, with_keys: bool) -> dict[str, Any]:
    """The parts of an operation that FastAPI does not know: its bodies, its query, and whether it needs a key."""
    content: dict[str, Any] = {}
    if operation.response is not None:
        content[operation.content_type] = {"schema": _reference(operation.response)}
    elif operation.content_type != "application/json":
        content[operation.content_type] = {"schema": {"type": "string"}}
    if operation.stream is not None:
        name = operation.stream.__name__
        content["text/event-stream"] = {
            "schema": {"description": f"Events whose data is one {name} each, and a final event with the data [DONE]."}
        }
    made: dict[str, Any] = {"responses": {"200": {"description": "Success.", "content": content}} | _errors(operation)}
    if operation.request is not None:
        made["requestBody"] = {"required": True, "content": {"application/json": _request(operation.request)}}
    if operation.upload:
        schema = _UPLOAD if operation.form is None else _form(operation.form)
        made["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
    parameters = _parameters(operation)
    if parameters:
        made["parameters"] = parameters
    if with_keys and not operation.public:
        made["security"] = [{"key": []}]
    return made


def _form(kind: type[Body]) -> dict[str, Any]:
    """A form with a file and the fields of a body; names of lists end in []."""
    _, components = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
    fields: dict[str, Any] = {"file": {"type": "string", "format": "binary"}}
    docs = {name: text for each in reversed(kind.__mro__) for name, text in _field_docs(each).items()}
    for name, schema in components[kind.__name__]["properties"].items():
        if name not in refused_fields(kind):
            is_list = any(each.get("type") == "array" for each in (schema, *schema.get("anyOf", ())))
            fields[f"{name}[]" if is_list else name] = {**schema, "description": docs.get(name, "")}
    return {"type": "object", "properties": fields, "required": ["file"]}


def _request(kind: type[Body]) -> dict[str, Any]:
    """A body, with examples that can be sent."""
    examples = {name: {"value": each} for name, each in examples_of(kind).items()}
    return {"schema": _reference(kind), "examples": examples} if examples else {"schema": _reference(kind)}


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    """What stands in the path and after it."""
    names = re.findall(r"{(\w+)", operation.path)
    made: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}} for name in names
    ]
    if operation.query is not None:
        _, components = msgspec.json.schema_components([operation.query])
        docs = _field_docs(operation.query)
        for name, schema in components[operation.query.__name__]["properties"].items():
            made.append({"name": name, "in": "query", "description": docs[name], "schema": schema})
    return made


def _errors(operation: Operation) -> dict[str, Any]:
    """The errors that may come: all of them for requests with a body."""
    if operation.request is not None or operation.upload:
        statuses = [status for status in operation.errors.documented if status != 403]
    elif operation.public:
        statuses = [500, 503]
    else:
        refusable = operation.refusable or "{response_id" in operation.path or operation.tag == "Files"
        statuses = [400] * refusable + [401, 404, 500, 503]
    if operation.operator:
        statuses = sorted([*statuses, 403])
    content = {"application/json": {"schema": _reference(operation.errors.body)}}
    documented = operation.errors.documented
    return {str(status): {"description": documented[status], "content": content} for status in statuses}


def _reference(kind: Any) -> dict[str, Any]:
    """A body, or a list of bodies."""
    if get_origin(kind) is list:
        return {"type": "array", "items": _reference(*get_args(kind))}
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _structs(kinds: set[Any]) -> Iterator[type[msgspec.Struct]]:
    """All Structs that stand inside others, and these themselves."""
    seen = set()
    waiting: list[Any] = [msgspec.inspect.type_info(kind) for kind in kinds]
    while waiting:
        info = waiting.pop()
        if isinstance(info, msgspec.inspect.StructType):
            if info.cls in seen:
                continue
            seen.add(info.cls)
            yield info.cls
            waiting += [field.type for field in info.fields]
        for name in ("types", "item_types"):
            waiting += getattr(info, name, ())
        for name in ("type", "item_type", "key_type", "value_type"):
            inner = getattr(info, name, None)
            waiting += [] if inner is None else [inner]


def _describe(schema: dict[str, Any], kind: type[msgspec.Struct], *, strict: bool) -> None:
    """Put the descriptions of fields into a schema, and what is accepted of fields that are not served."""
    descriptions = {name: text for each in reversed(kind.__mro__) for name, text in _field_docs(each).items()}
    refused = refused_fields(kind) if issubclass(kind, Body) else {}
    if not strict:
        schema.pop("additionalProperties", None)
    schema["properties"].pop(TEMPLATE_FIELDS, None)
    for name, field in schema["properties"].items():
        if not strict and isinstance(refused.get(name), Ignored):
            field["description"] = f"Ignored: {refused[name].reason}."
        elif name in refused:
            field["enum"] = [None, *refused[name].allowed]
            field["description"] = f"Not served: {refused[name].reason}."
        elif name in descriptions:
            # A reference allows no neighbours in older tools.
            wrapped = {"allOf": [dict(field)]} if "$ref" in field else dict(field)
            field.clear()
            field.update(wrapped, description=descriptions[name])


def _field_docs(kind: type) -> dict[str, str]:
    """The texts that stand below the fields of a class in its source."""
    if kind.__module__.split(".")[0] != "jaxllm":
        return {}
    (definition,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    docs = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            docs[field.target.id] = inspect.cleandoc(ast.literal_eval(text.value))
    return docs
