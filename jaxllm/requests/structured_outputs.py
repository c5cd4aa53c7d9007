"""The constraint on an output: vLLM's names and meanings."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec

from jaxllm.errors import RequestError
from jaxllm.requests.checked_names import CheckedNames, repr_of_changes
from jaxllm.requests.value_checks import wrong

MAX_SOURCE: Final = 1 << 17
"""Most bytes of one schema, regular expression or grammar."""

MAX_DEPTH: Final = 100
"""Most levels of lists and objects in a schema: `properties` of a property of an object is four."""

MAX_CHOICES: Final = 10_000
"""Most texts of one `choice`."""

KINDS: Final = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
"""Fields that say what the output has to be like; exactly one is given."""


class _Names(CheckedNames):
    noun: ClassVar[str] = "field of structured_outputs"
    reasons: ClassVar[dict[str, str]] = {
        "backend": "it is set for all requests, with the engine's --structured-outputs-backend"
    }
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        "backend": (None, "auto", "xgrammar", "guidance", "outlines", "lm-format-enforcer"),
        "backend_was_auto": (False, True),
        "disable_fallback": (False, True),
    }


class StructuredOutputsParams(
    msgspec.Struct, metaclass=_Names, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The form of an output: exactly one of the first six fields, and options.

    Checked when made, as far as that is cheap; a wrong value raises `RequestError` with the name of the field in
    `parameter`. Whether a grammar can be compiled is known when the engine has tried.
    """

    json: dict[str, Any] | str | bool | None = None
    """A JSON schema, also as text or as a class of pydantic's; `true` allows any JSON."""
    regex: str | None = None
    """A regular expression that the whole output matches."""
    choice: list[str] | None = None
    """The output is one of these texts."""
    grammar: str | None = None
    """A context-free grammar, in Lark's form or in GBNF (an EBNF)."""
    json_object: bool = False
    """The output is any JSON object."""
    structural_tag: dict[str, Any] | str | None = None
    """Free text in which certain beginnings (`triggers`) start a part that follows a JSON schema."""

    whitespace_pattern: str | None = None
    """A regular expression for the whitespace between the tokens of JSON; see docs/structured_outputs.md for what it
    is otherwise."""
    disable_any_whitespace: bool = False
    """JSON without whitespace between its tokens."""
    disable_additional_properties: bool = False
    """Objects have no properties but those their schema names, unless it says otherwise."""

    def __post_init__(self) -> None:
        self.validate()

    def __repr__(self) -> str:
        return repr_of_changes(self)

    @property
    def kind(self) -> str:
        """Which of `KINDS` is given."""
        return next(name for name in KINDS if self._given(name))

    def validate(self) -> None:
        """Check every field. Raises `RequestError` for the first that is wrong.

        A schema with integers that msgpack does not know, beyond 64 bits, becomes its text.
        """
        given = [name for name in KINDS if self._given(name)]
        if len(given) != 1:
            found = " and ".join(given) if given else "none"
            raise RequestError(f"structured_outputs: exactly one of {', '.join(KINDS)} is required, not {found}", None)
        for name in ("json_object", "disable_any_whitespace", "disable_additional_properties"):
            if not isinstance(getattr(self, name), bool):
                raise wrong(name, getattr(self, name), "true or false")
        name = given[0]
        make_schema = getattr(self.json, "model_json_schema", None)
        if make_schema is not None:
            self.json = make_schema()  # of a class of pydantic's
        value = getattr(self, name)
        if name in ("regex", "grammar"):
            _check_text(name, value)
        elif name == "choice":
            _check_choice(value)
        elif name == "json":
            _check_schema(value)
            self.json = _portable(value)
        elif name == "structural_tag":
            _check_object(name, value)
            self.structural_tag = _portable(value)
        if self.whitespace_pattern is not None:
            _check_text("whitespace_pattern", self.whitespace_pattern)
            if self.disable_any_whitespace:
                raise RequestError(
                    "whitespace_pattern: cannot be combined with disable_any_whitespace", "whitespace_pattern"
                )

    def _given(self, name: str) -> bool:
        value = getattr(self, name)
        return value is not None and (value is not False or name == "json")

    @classmethod
    def of(cls, value: Any) -> "StructuredOutputsParams":
        """From an object of this class or a mapping of its fields. Raises `RequestError`."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise wrong("structured_outputs", value, "a StructuredOutputsParams or a mapping of its fields")
        made: StructuredOutputsParams = cls(**value)
        return made


def _check_text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise wrong(name, value, "a non-empty string")
    _check_size(name, value)


def _check_size(name: str, text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise RequestError(f"{name}: not valid Unicode: {error.reason}", name) from error
    if size > MAX_SOURCE:
        raise RequestError(f"{name}: has {size} bytes; at most {MAX_SOURCE} are allowed", name)


def _check_choice(value: Any) -> None:
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
        raise wrong("choice", value, "a non-empty list of non-empty strings")
    if len(value) > MAX_CHOICES:
        raise RequestError(f"choice: has {len(value)} strings; at most {MAX_CHOICES} are allowed", "choice")
    _check_size("choice", "".join(value))


def _check_schema(value: Any) -> None:
    if value is True:
        return
    if value is False:
        raise wrong("json", value, "a JSON schema other than false, which no value satisfies")
    _check_object("json", value, or_true=True)


def _check_object(name: str, value: Any, *, or_true: bool = False) -> None:
    """Check that `value` is an object, or the text of one, neither too large nor too deep."""
    if isinstance(value, str):
        _check_text(name, value)
        try:
            value = json.loads(value)
        except RecursionError:
            raise _nesting_error(name) from None
        except ValueError as error:
            raise RequestError(f"{name}: not valid JSON: {error}", name) from None
        if or_true and value is True:
            return
        _check_depth(name, value)
    elif isinstance(value, dict):
        _check_depth(name, value)
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise RequestError(f"{name}: cannot be written as JSON: {error}", name) from None
        _check_size(name, text)
    if not isinstance(value, dict):
        raise wrong(name, value, "a JSON object, or the text of one")


def _portable(value: Any) -> Any:
    """The value, or its text where it cannot be sent to another process as it is."""
    if isinstance(value, dict):
        try:
            msgspec.msgpack.encode(value)
        except OverflowError:
            return json.dumps(value, ensure_ascii=False)
    return value


def _check_depth(name: str, value: Any) -> None:
    """Without recursion: what comes from a client may be deeper than Python's stack."""
    level, items = 0, [value]
    while items := [item for item in items if isinstance(item, (dict, list, tuple))]:
        level += 1
        if level > MAX_DEPTH:
            raise _nesting_error(name)
        items = [child for item in items for child in (item.values() if isinstance(item, dict) else item)]


def _nesting_error(name: str) -> RequestError:
    return RequestError(f"{name}: nested too deeply; at most {MAX_DEPTH} levels are allowed", name)
