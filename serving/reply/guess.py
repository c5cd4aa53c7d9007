"""Which format of calls a chat template writes: a conversation with a call goes through it, and is read back."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import product
from typing import Any, Final

from jaxllm.errors import RequestError
from jaxllm.serving.reply.catalogue import TOOL_FORMATS
from jaxllm.serving.reply.compose import make_parser
from jaxllm.serving.reply.formats.base import ReasoningFormat, ToolFormat
from jaxllm.serving.reply.lark import Lark
from jaxllm.serving.reply.parts import ReplyParser, ToolCallStart, fold, read_whole

Render = Callable[..., str]
"""Makes the text of messages, with `tools` and `add_generation_prompt`.

It raises what the template raises, and `RequestError` for one that takes too long.
"""

_NAME: Final = "find_place"
_ARGUMENTS: Final = {"place": "Oak Hill", "days": 3}
_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "place": {"type": "string", "description": "A town."},
        "days": {"type": "integer", "description": "How many."},
    },
    "required": ["place", "days"],
}
_TOOL: Final = {
    "type": "function",
    "function": {"name": _NAME, "description": "Finds a place.", "parameters": _SCHEMA},
}
_USER: Final = {"role": "user", "content": "Where is it?"}
_WORDS: Final = "These are words"
_IDS: Final = ("call00001", f"functions.{_NAME}:0")
_NAMES: Final = ("hermes", "qwen3_coder", "llama3_json", "pythonic", "minimax_m2", "cohere_command3", "jamba")
"""Names that stand for others of the same format."""
_LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"')
_END_MARKS = re.compile(r"(\s|<[^<>\s]+>|\[[^\[\]\s]+\])*")
"""The text that may follow a call: tokens that end a turn."""
_BOUNDARY = re.compile(r".*[\n>\]]", re.DOTALL)


def format_of_calls(render: Render, make: Callable[[str], ToolFormat], reasoning: ReasoningFormat | None) -> str | None:
    """The format that reads a call back, and itself writes calls most like it; None: none does.

    `make` makes a format by its name.
    """
    formats = dict[str, ToolFormat]()
    with suppress(RequestError):
        for answer, before in _answers(render):
            formats = formats or _formats(make)
            found = {
                name: _unlike(tools, answer)
                for name, tools in formats.items()
                if _reads_back(tools, reasoning, answer, before)
            }
            if found:
                return min(found, key=lambda name: found[name])
    return None


def _formats(make: Callable[[str], ToolFormat]) -> dict[str, ToolFormat]:
    """Every format under one of its names."""
    names: dict[str, str] = {}
    for name in (*_NAMES, *TOOL_FORMATS):
        names.setdefault(TOOL_FORMATS[name].path, name)
    return {name: make(name) for name in names.values()}


def _unlike(tools: ToolFormat, answer: str) -> tuple[int, int, int, int]:
    """How much of an answer a format leaves over, and how much of what it would write itself is not there."""
    left = len(read_whole(make_parser(tools), answer).content or "")
    call = tools.call(Lark({}), _NAME, _SCHEMA)
    own = [tools.opening, tools.closing, *map(json.loads, _LITERAL.findall(call))]
    answer_letters, letters = "".join(answer.split()), ["".join(text.split()) for text in own]
    missing = sum(text not in answer_letters for text in letters)
    return left, missing, -sum(map(len, letters)), sum(text not in answer for text in own)


def _answers(render: Render) -> Iterator[tuple[str, str]]:
    """What the template makes of an answer that calls, and what it writes before one in words.

    Templates differ in what they can read: ids that hold the name, arguments as text, no content at all.
    """
    known = set[str]()
    for call_id, arguments, content in product(_IDS, (_ARGUMENTS, json.dumps(_ARGUMENTS)), ("", None)):
        function = {"name": _NAME, "arguments": arguments}
        calling = {
            "role": "assistant",
            "content": content,
            "tool_calls": [{"id": call_id, "type": "function", "function": function}],
        }
        whole = _try(render, [_USER, calling])
        if whole is None or whole in known:
            continue
        known.add(whole)
        prompt = _try(render, [_USER], add_generation_prompt=True)
        if prompt is not None:
            words = _try(render, [_USER, {"role": "assistant", "content": _WORDS}])
            yield _behind(prompt, whole), "" if words is None else _behind(prompt, words).partition(_WORDS)[0]
        yield whole[whole.rfind(_USER["content"]) + len(_USER["content"]) :], ""


def _try(render: Render, messages: Sequence[Any], *, add_generation_prompt: bool = False) -> str | None:
    try:
        return render(messages, tools=[_TOOL], add_generation_prompt=add_generation_prompt)
    except RequestError:
        # The next try would take as long.
        raise
    # A template is a program of somebody else's: it raises what it likes.
    except Exception:  # noqa: BLE001
        return None


def _behind(prompt: str, whole: str) -> str:
    """The text after a prompt; tags stay whole at the boundary."""
    if whole.startswith(prompt):
        return whole[len(prompt) :]
    length = next((place for place, pair in enumerate(zip(prompt, whole, strict=False)) if pair[0] != pair[1]), 0)
    found = _BOUNDARY.match(whole, 0, length)
    return whole if found is None else whole[found.end() :]


def _reads_back(tools: ToolFormat, reasoning: ReasoningFormat | None, answer: str, before: str) -> bool:
    """Whether a format reads the call, and leaves nothing over but what ends the answer."""
    texts = dict.fromkeys((answer, answer.removeprefix(before), answer.strip().removeprefix(before.strip())))
    return any(
        _is_the_call(make_parser(tools, each, schemas={_NAME: _SCHEMA}), text)
        for text in texts
        for each in dict.fromkeys((None, reasoning))
    )


def _is_the_call(parser: ReplyParser, text: str) -> bool:
    parts = [*parser.push(text), *parser.finish()]
    begin = next((place for place, part in enumerate(parts) if isinstance(part, ToolCallStart)), None)
    if begin is None or (fold(parts[:begin]).content or "").strip():
        return False
    reply = fold(parts)
    if not _END_MARKS.fullmatch(reply.content or "") or [call.name for call in reply.tool_calls] != [_NAME]:
        return False
    try:
        return bool(json.loads(reply.tool_calls[0].arguments) == _ARGUMENTS)
    except ValueError:
        return False
