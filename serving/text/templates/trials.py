"""The inputs of a chat template, found out by rendering short conversations with it.

A template is a program: whether the text of a message reaches the prompt depends on its role, on the form of its
content, on where it stands and on whether there are tools. So each is tried, once, with words that no template has.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import Any

from jaxllm.errors import CapacityError
from jaxllm.serving.text.templates.budget import TemplateLimitError
from jaxllm.serving.text.templates.facts import TemplateFacts

Messages = list[dict[str, Any]]
_ONE, _TWO = "qzxwordone", "qzxwordtwo"
_WORDS = f"{_ONE} {_TWO}"
_KEY = "qzxfield"
"""A field of parts: where it is in the prompt, the template has written a list as a whole."""
_NO_ROLE = "qzxrole"
"""A role that no template knows."""
_DEVELOPER = "developer"
INSTRUCTIONS = ("system", _DEVELOPER)
"""Roles of whoever says what the model is to do."""
_CALL = {"id": "call00001", "type": "function", "function": {"name": "qzxtool", "arguments": {"a": "b"}}}
_MOST_SECONDS = 5.0
"""Time of all trials together. Dozens of them take milliseconds; a template that takes longer is not tried further."""
_DESCRIBED = {"description": "Text.", "parameters": {"type": "object", "properties": {}}}


class Form(Enum):
    """The form of a content."""

    TEXT = "text"
    PARTS = "parts"
    ONE_PART = "one part"


class TemplateTrials:
    """Trial renderings, each made when it is first asked for. Safe to use from several threads."""

    def __init__(
        self, render: Callable[..., str], source: TemplateFacts, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`render` makes the prompt of messages, with or without `tools`; it may raise any exception."""
        self._render = render
        self._clock = clock
        self._seconds_left = _MOST_SECONDS
        self._has_rendered = False
        self._source = source
        self._forms: dict[tuple[Any, ...], Form] = {}
        self._taken: dict[tuple[tuple[str, ...], bool], bool] = {}
        self._read: dict[tuple[str, str], bool] = {}

    def form(self, role: str, sent: Form, *, calls: bool = False, tools: bool = False) -> Form:
        """The form in which contents of a role reach the prompt, if any does; if there are several, the one `sent`.

        `calls`: of messages with calls. `tools`: in conversations that have tools.
        """
        if role not in _POSITIONS and role not in self._source.values:
            # Clients choose names of roles; a template does the same with all that it does not know.
            role = _NO_ROLE
        key = (role, sent, calls, tools)
        found = self._forms.get(key)
        if found is None:
            found = self._forms[key] = self._find_form(role, sent, calls=calls, tools=tools)
        return found

    @cached_property
    def knows_developer(self) -> bool:
        """Whether the role `developer` is not the same to the template as one that it does not know."""
        said, user = _said(_DEVELOPER, self.form(_DEVELOPER, Form.TEXT)), _other("user", self._base)
        developer = self._try([said, user])
        if developer is None or not _shows(developer):
            return False
        unknown = self._try([{**said, "role": _NO_ROLE}, user])
        return unknown is None or _alike(unknown).replace(_NO_ROLE, _DEVELOPER) != _alike(developer)

    def takes(self, roles: Sequence[str], *, tools: bool = False) -> bool:
        """Whether in a conversation of these roles the texts of all instructions reach the prompt."""
        key = (tuple(roles), tools)
        if key not in self._taken:
            words = [f"qzxword{index}z" for index in range(len(roles))]
            wanted = [word for role, word in zip(roles, words, strict=True) if role in INSTRUCTIONS]
            forms = [self.form(role, Form.TEXT) for role in roles]
            messages = [_message(role, form, (word,)) for role, form, word in zip(roles, forms, words, strict=True)]
            prompt = self._try(messages, _TOOLS if tools else None)
            self._taken[key] = prompt is not None and all(word in prompt.lower() for word in wanted)
        return self._taken[key]

    def joiner(self, role: str) -> str:
        """Text that the template writes between two parts of a content."""
        for place in _places(role, calls=False):
            prompt = self._try(place(Form.PARTS, self._base))
            if prompt is not None and _shows(prompt):
                return prompt[prompt.lower().find(_ONE) + len(_ONE) : prompt.lower().find(_TWO)]
        return "\n"

    def reads_part(self, role: str, kind: str) -> bool:
        """Whether what a part of the type `kind` holds, under this name or as text, reaches the prompt."""
        if kind not in self._source.values | self._source.fields:
            return False
        key = (role if role in _POSITIONS else _NO_ROLE, kind)
        if key not in self._read:
            self._read[key] = any(
                self._works([*before, {"role": role, "content": [part, _part("text")]}, *before])
                for part in ({"type": kind, kind: _WORDS, "text": _WORDS}, {"type": kind, kind: [_part(_WORDS)]})
                for before in ([], [_other("user", self._base)])
            )
        return self._read[key]

    @cached_property
    def call_form(self) -> tuple[Any, bool]:
        """The content of a message that has calls and says nothing, and whether their arguments must be JSON text."""
        user, called, result = (_other(role, self._base) for role in ("user", "calls", "tool"))
        for as_text in (False, True):
            for content in ("", None, [{"type": "text", "text": ""}]):
                (message,) = _with_arguments_as_text([called]) if as_text else [called]
                if self._rendered([user, {**message, "content": content}, result]) is not None:
                    return content, as_text
        return "", False

    def with_calls(self, messages: Messages) -> Messages:
        """The messages with calls in the form that the template takes."""
        if not any("tool_calls" in message for message in messages):
            return messages
        content, as_text = self.call_form
        if as_text:
            messages = _with_arguments_as_text(messages)
        if content == "":
            return messages
        return [
            {**each, "content": content} if "tool_calls" in each and each["content"] in ("", []) else each
            for each in messages
        ]

    @cached_property
    def needs_properties(self) -> bool:
        """Whether a tool whose schema has no properties is an error."""
        schema = {"type": "object"}
        return self._takes_tool(_DESCRIBED) and not self._takes_tool({**_DESCRIBED, "parameters": schema})

    @cached_property
    def needs_description(self) -> bool:
        """Whether a tool without a description is an error."""
        return self._takes_tool(_DESCRIBED) and not self._takes_tool({"parameters": _DESCRIBED["parameters"]})

    def _takes_tool(self, function: Mapping[str, Any]) -> bool:
        tool = {"type": "function", "function": {"name": "qzxtool", **function}}
        return self._try([_said("user", self._base)], [tool]) is not None

    @cached_property
    def _base(self) -> Form:
        """The form of all messages but the one that is tried."""
        for form in Form:
            if self._works([_said("user", form)]):
                return form
        return Form.PARTS if self._source.reads_parts else Form.TEXT

    def _find_form(self, role: str, sent: Form, *, calls: bool, tools: bool) -> Form:
        preferred = [sent, *(form for form in (Form.TEXT, Form.PARTS, Form.ONE_PART) if form is not sent)]
        if sent is Form.ONE_PART or sent is Form.TEXT:
            preferred.remove(Form.PARTS)
        places = list(_places(role, calls=calls))
        counts: dict[Form, int] = {}
        for form in preferred:
            counts[form] = sum(self._works_at(place, form, tools=tools) for place in places)
            if counts[form] == len(places):
                return form
        if any(counts.values()):
            return max(preferred, key=counts.__getitem__)
        if calls or tools:
            # Such a message may have no content in the prompt at all.
            return self.form(role, sent, tools=tools and calls)
        if not self._source.reads_parts:
            return Form.TEXT
        return Form.ONE_PART if sent is Form.TEXT else sent

    def _works_at(self, place: "Place", form: Form, *, tools: bool) -> bool:
        given = _TOOLS if tools else None
        return any(self._works(place(form, other), given) for other in {self._base: None, Form.TEXT: None})

    def _works(self, messages: Messages, tools: Any = None) -> bool:
        prompt = self._try(messages, tools)
        return prompt is not None and _shows(prompt)

    def _try(self, messages: Messages, tools: Any = None) -> str | None:
        """The prompt; None: the template rejects the messages."""
        return self._rendered(self.with_calls(messages), tools)

    def _rendered(self, messages: Messages, tools: Any = None) -> str | None:
        if self._seconds_left <= 0:
            return None
        begun = self._clock()
        try:
            return self._render(messages, tools=tools, add_generation_prompt=True)
        except CapacityError:
            raise
        except TemplateLimitError:
            # It would go beyond the limits of each trial, one after the other.
            self._seconds_left = 0.0
            return None
        # A template is a program of somebody else's: it raises what it likes.
        except Exception:  # noqa: BLE001
            return None
        finally:
            # The first rendering of a process imports what renders.
            self._seconds_left -= self._clock() - begun if self._has_rendered else 0.0
            self._has_rendered = True


def _with_arguments_as_text(messages: Messages) -> Messages:
    """The messages with JSON text in place of the objects that are arguments of calls."""
    return [
        {**each, "tool_calls": [_with_text(call) for call in each["tool_calls"]]} if "tool_calls" in each else each
        for each in messages
    ]


def _with_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}


Place = Callable[[Form, Form], Messages]
"""Makes a conversation with a message of the form that is tried, and others of another form."""

_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "qzxtool",
            "description": "Text.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "string", "description": "Text."}},
                "required": ["a"],
            },
        },
    }
]
_POSITIONS: dict[str, list[list[str]]] = {
    "system": [["*", "user"]],
    "developer": [["*", "user"]],
    "user": [["*"], ["system", "*"], ["user", "assistant", "*"]],
    "assistant": [["user", "*", "user"]],
    "tool": [["user", "calls", "*"], ["user", "calls", "*", "assistant", "user"]],
}
"""Where messages of a role stand."""
_OF_OTHERS = [["*"], ["user", "*"]]
_WITH_CALLS = [["user", "*", "tool"], ["user", "*", "tool", "assistant", "user"]]


def _places(role: str, *, calls: bool) -> Iterator[Place]:
    for roles in _WITH_CALLS if calls else _POSITIONS.get(role, _OF_OTHERS):

        def place(form: Form, other: Form, roles: Sequence[str] = roles) -> Messages:
            return [_said(role, form, calls=calls) if each == "*" else _other(each, other) for each in roles]

        yield place


def _other(role: str, form: Form) -> dict[str, Any]:
    if role == "calls":
        return {"role": "assistant", "content": "", "tool_calls": [_CALL]}
    return _message(role, form, ("text",))


def _said(role: str, form: Form, *, calls: bool = False) -> dict[str, Any]:
    """A message with the words that are looked for."""
    message = _message(role, form, (_ONE, _TWO))
    return {**message, "tool_calls": [_CALL]} if calls else message


def _message(role: str, form: Form, words: tuple[str, ...]) -> dict[str, Any]:
    content: Any = " ".join(words)
    if form is not Form.TEXT:
        texts = words if form is Form.PARTS else (content,)
        content = [_part(text) for text in texts]
    message = {"role": role, "content": content}
    return {**message, "tool_call_id": _CALL["id"], "name": "qzxtool"} if role == "tool" else message


def _part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, _KEY: True}


def _shows(prompt: str) -> bool:
    """Whether the words are there as text, and not inside of a list that was written as a whole."""
    text = prompt.lower()
    return -1 < text.find(_ONE) < text.find(_TWO) and _KEY not in text


def _alike(prompt: str) -> str:
    """A prompt without what may differ for no reason: some templates write the time, or roles in capitals."""
    return "".join("0" if each.isdigit() else each for each in prompt.lower())
