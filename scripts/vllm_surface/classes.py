"""Fields of parameters, of results and of requests, and methods."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import Any, get_args, get_type_hints

import msgspec

from jaxllm.serving.http.body.base import Ignored, Refused
from scripts.vllm_surface.reasons import reason_for
from scripts.vllm_surface.source import Source
from scripts.vllm_surface.tables import Row, State, Table

_PARAMETERS = ("SamplingParams", "BeamSearchParams", "PoolingParams", "StructuredOutputsParams")
_RESULTS = ("CompletionOutput", "RequestOutput", "PoolingRequestOutput")
_REQUESTS = {
    "ChatCompletionRequest": ("entrypoints/openai/chat_completion", "jaxllm.serving.openai.protocol.chat"),
    "CompletionRequest": ("entrypoints/openai/completion", "jaxllm.serving.openai.protocol.completions"),
    "ResponsesRequest": ("entrypoints/openai/responses", "jaxllm.serving.openai.protocol.responses"),
    "AnthropicMessagesRequest": ("entrypoints/anthropic", "jaxllm.serving.anthropic.requests:MessagesRequest"),
}


def parameters(source: Source) -> Table:
    """Fields of classes of parameters and of results."""
    classes = {
        each.name: each for place in ("sampling_params.py", "pooling_params.py", "outputs.py")
        for each in source.classes(place)
    }  # fmt: skip
    rows: list[Row] = []
    for name in (*_PARAMETERS, *_RESULTS):
        kind = getattr(import_module("jaxllm"), name, None)
        ours, neutral = ours_of(kind), getattr(type(kind), "neutral", {})
        for field in source.fields(name, classes):
            if field in neutral:
                rows.append(Row(f"{name}.{field}", "neutral", getattr(type(kind), "reasons", {}).get(field, "")))
            elif not field.startswith("_"):
                rows += _compare(f"{name}.", [field], ours.__contains__)
    return Table("fields of parameters and results", tuple(rows))


def ours_of(kind: Any) -> set[str]:
    """Names of the fields and properties of a class of ours; nothing of None."""
    if kind is None:
        return set()
    names = {item.name for item in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    names |= set(getattr(kind, "__struct_fields__", ()))
    names |= set(inspect.signature(kind).parameters)
    return names | {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}


def methods(source: Source) -> Table:
    """Public methods of the engines' classes."""
    rows: list[Row] = []
    for name, place, home in (
        ("LLM", "entrypoints", "jaxllm"),
        ("AsyncLLM", "v1/engine/async_llm.py", "jaxllm.v1.engine.async_llm"),
        ("LLMEngine", "v1/engine", "jaxllm"),
    ):
        theirs = {each.name: each for each in source.classes(place)}
        found, names = [name], dict[str, None]()
        while found:
            one = theirs.get(found.pop())
            if one is not None:
                names |= dict.fromkeys(one.methods)
                found += one.bases
        ours = getattr(import_module(home), name)
        rows += _compare(f"{name}.", names, partial(_has, ours))
    return Table("methods", tuple(rows))


def _has(kind: type, name: str) -> bool:
    """Whether objects of this class have the name: by the class, or since they are made."""
    makers = (vars(each)["__init__"] for each in kind.__mro__ if each is not object and "__init__" in vars(each))
    return hasattr(kind, name) or any(f"self.{name} =" in inspect.getsource(each) for each in makers)


def _compare(prefix: str, names: Iterable[str], has: Callable[[str], bool]) -> list[Row]:
    return [
        Row(prefix + name, "present") if has(name) else Row(prefix + name, "absent", reason_for(name)) for name in names
    ]


def requests(source: Source) -> Table:
    """Fields of requests over HTTP."""
    rows: list[Row] = []
    for name, (place, ours) in _REQUESTS.items():
        module, _, other = ours.partition(":")
        kind = getattr(import_module(module), other or name)
        classes = {each.name: each for each in source.classes("entrypoints")}
        classes |= {each.name: each for each in source.classes(place)}
        known = {
            field.encode_name: marks(hint) for field, hint in
            zip(msgspec.structs.fields(kind), _hints(kind), strict=True)
        }  # fmt: skip
        theirs = (field for field in source.fields(name, classes) if not field.startswith("_"))
        rows += [_request_field(f"{name}.{field}", known, field) for field in theirs if field != "model_config"]
    return Table("fields of requests", tuple(rows))


def _hints(kind: Any) -> list[Any]:
    hints = get_type_hints(kind, include_extras=True)
    return [hints[name] for name in kind.__struct_fields__]


def marks(hint: Any) -> Refused | None:
    """What a field's annotation says of its being rejected."""
    found = [each for each in get_args(hint) if isinstance(each, Refused)]
    return found[0] if found else None


def _request_field(title: str, known: dict[str, Refused | None], field: str) -> Row:
    if field not in known:
        return Row(title, "absent", reason_for(field))
    mark = known[field]
    if mark is None:
        return Row(title, "present")
    state: State = "accepted" if isinstance(mark, Ignored) else "neutral"
    return Row(title, state, mark.reason)
