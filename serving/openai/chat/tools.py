"""The tools of a request: checked, and what the request says about calling them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jaxllm.errors import RequestError, nearest, quoted, shortened
from jaxllm.serving.openai.protocol.chat import ChatCompletionRequest
from jaxllm.serving.openai.protocol.messages import Function, Tool

_NAME = re.compile(r"[a-zA-Z0-9_.\-]{1,128}")
_MODES = ("none", "auto", "required")


@dataclass(frozen=True)
class ToolUse:
    """The tools of a request.

    `functions` are those that may be called. `forced`: the answer consists of calls; else it may have some, unless
    `allowed` is false. `named`: it is one call, of the function that the request names. `several`: there may be more
    than one.
    """

    functions: Mapping[str, Function]
    allowed: bool
    forced: bool
    named: bool
    several: bool

    @property
    def constrains(self) -> bool:
        """Whether calls are written by a grammar: because they must come, or be valid if they do."""
        return self.allowed and (self.forced or any(function.strict for function in self.functions.values()))


NO_TOOLS = ToolUse({}, allowed=False, forced=False, named=False, several=True)
"""Tool use of requests without tools."""


def tool_use(body: ChatCompletionRequest) -> ToolUse:
    """The tools of a request. Raises `RequestError` with the name of the field that is wrong."""
    functions = _functions(body.tools or ())
    mode, names = _choice(body.tool_choice, functions)
    if mode != "none" and not functions:
        mode = "none"
    chosen = functions if names is None else {name: functions[name] for name in names}
    named = isinstance(body.tool_choice, dict) and body.tool_choice.get("type", "function") == "function"
    several = body.parallel_tool_calls is not False and not named
    return ToolUse(chosen, allowed=mode != "none", forced=mode == "required", named=named, several=several)


def _functions(tools: Sequence[Tool]) -> dict[str, Function]:
    found: dict[str, Function] = {}
    for index, tool in enumerate(tools):
        place = f"tools[{index}]"
        if tool.type != "function":
            raise RequestError(f"{place}.type={quoted(tool.type)}: only 'function' is supported", f"{place}.type")
        function, place = tool.function, f"{place}.function"
        if function is None:
            raise RequestError(f"{place}: this field is required", place)
        if not _NAME.fullmatch(function.name):
            raise RequestError(
                f"{place}.name={quoted(function.name)}: must be 1 to 128 letters, digits, and _ - .", f"{place}.name"
            )
        if function.name in found:
            raise RequestError(f"{place}.name={quoted(function.name)}: another tool has this name", f"{place}.name")
        _check_parameters(function.parameters, f"{place}.parameters")
        found[function.name] = function
    return found


def _check_parameters(schema: Mapping[str, Any] | None, place: str) -> None:
    """Raise `RequestError` for what cannot be the JSON schema of parameters."""
    for path, reason in _problems(schema or {}):
        raise RequestError(f"{place}{path}: {reason}", place)


def _problems(schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong with the outermost level of a schema, and where. The rest is looked at where it is enforced."""
    if schema.get("type", "object") != "object":
        yield ".type", f"must be 'object', not {quoted(schema['type'])}"
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping):
        yield ".properties", "must be an object of JSON schemas"
        return
    for name, inner in properties.items():
        if not isinstance(inner, (Mapping, bool)):
            yield f".properties.{shortened(name)}", "must be a JSON schema"
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        yield ".required", "must be a list of names"


def _choice(
    choice: str | dict[str, Any] | None, functions: Mapping[str, Function]
) -> tuple[Literal["none", "auto", "required"], list[str] | None]:
    """How tools are to be used, and which; None: all. Raises `RequestError`."""
    if choice is None or choice == "auto":
        return "auto", None
    if choice == "none":
        return "none", None
    if choice == "required":
        if not functions:
            raise RequestError(
                "tool_choice='required': requires tools of type 'function'; others are ignored", "tool_choice"
            )
        return "required", None
    if isinstance(choice, str):
        raise RequestError(
            f"tool_choice={quoted(choice)}: must be one of {', '.join(_MODES)}, or an object that names a function",
            "tool_choice",
        )
    if choice.get("type", "function") == "function":
        return "required", [_known(choice, functions, "tool_choice")]
    if choice.get("type") == "allowed_tools":
        return _allowed(choice.get("allowed_tools"), functions)
    raise RequestError(
        f"tool_choice.type={quoted(choice.get('type'))}: must be 'function' or 'allowed_tools'", "tool_choice.type"
    )


def _allowed(
    allowed: Any, functions: Mapping[str, Function]
) -> tuple[Literal["none", "auto", "required"], list[str] | None]:
    """OpenAI's way to allow some tools only."""
    place = "tool_choice.allowed_tools"
    if not isinstance(allowed, Mapping) or allowed.get("mode") not in ("auto", "required"):
        raise RequestError(f"{place}.mode: must be 'auto' or 'required'", f"{place}.mode")
    tools = allowed.get("tools")
    if not isinstance(tools, list) or not tools:
        raise RequestError(f"{place}.tools: must be a list of tools", f"{place}.tools")
    names = [_known(tool, functions, f"{place}.tools[{index}]") for index, tool in enumerate(tools)]
    return allowed["mode"], list(dict.fromkeys(names))


def _known(tool: Any, functions: Mapping[str, Function], place: str) -> str:
    """The name in `{"type": "function", "function": {"name": ...}}`."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    place = f"{place}.function.name"
    if not isinstance(name, str):
        raise RequestError(f"{place}: this field is required", place)
    if name not in functions:
        hint = nearest(name, functions) if functions else "; the request has no tools"
        raise RequestError(f"{place}={quoted(name)}: no tool has this name{hint}", place)
    return name
