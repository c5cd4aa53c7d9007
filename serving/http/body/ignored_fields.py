"""What a request asks for and does not get: fields that are unknown or not served are ignored, misspellings rejected.

What is ignored is named in a header of the response, and once in the log.
"""

import logging
import re
from collections.abc import Collection, Mapping

from starlette.types import Scope

from jaxllm.errors import nearest, quoted
from jaxllm.serving.http.body.base import Body, Ignored
from jaxllm.serving.http.body.misspelling import field_names, misspelt
from jaxllm.serving.http.errors import BodyError

logger = logging.getLogger(__name__)

IGNORED = "jaxllm.ignored_fields"
"""Name in the scope of a request: its `IgnoredFields`."""
IGNORED_HEADER = "X-Ignored-Fields"

_MOST_NAMES = 64
"""Most different unknown fields of one request, and most values of one list: each is compared with all known ones."""
_MOST_LOGGED = 256
_LONGEST_NAME = 64
_LONGEST_HEADER = 1024
_TYPO = 0.75
"""How alike an unknown value must be to a known one to be taken for its misspelling; 1 is equal."""


class FieldPolicy:
    """Which fields of a request are ignored, and which rejected.

    By default those are ignored that stand besides the messages or the input and are unknown, and those that are known
    and neither served nor essential. Refused are misspellings, and what is unknown inside of something else, unless
    clients of other servers send it (`client_fields`).
    """

    def __init__(
        self,
        *,
        strict: bool = False,
        ignore_unknown: bool = False,
        without_effect: Mapping[str, Ignored] | None = None,
        of_template: Collection[str] = (),
    ) -> None:
        """`strict`: nothing is ignored. `ignore_unknown`: all unknown fields are ignored.

        `without_effect` are fields of bodies that this server does not serve, though others do. `of_template` are the
        fields that its chat template reads.
        """
        self.strict = strict
        self.without_effect = without_effect or {}
        self.of_template = of_template
        self.ignore_unknown = ignore_unknown
        self._logged: set[str] = set()

    def log(self, name: str) -> None:
        """Say in the log, once, that a field is ignored. Only so many names are logged: clients choose them."""
        self._log("requests have the field %s, which is ignored (--strict-fields rejects it)", name)

    def log_refused(self, name: str) -> None:
        """Say in the log, once, that an unknown field is rejected."""
        self._log("requests have the unknown field %s, which is rejected (--ignore-unknown-fields ignores it)", name)

    def _log(self, text: str, name: str) -> None:
        if name in self._logged or len(self._logged) >= _MOST_LOGGED:
            return
        self._logged.add(name)
        logger.warning(text, name)


class IgnoredFields:
    """The fields of one request that are ignored."""

    def __init__(self, policy: FieldPolicy) -> None:
        self.strict = policy.strict
        """Whether nothing may be ignored."""
        self.without_effect = policy.without_effect
        self.of_template = policy.of_template
        """Fields that the chat template reads."""
        self._policy = policy
        self._names: dict[str, None] = {}
        self._unknown: set[tuple[type[Body], str]] = set()

    def add(self, place: str) -> None:
        """Ignore what stands at a place such as `messages[0].name`; names that clients choose are `_shown`."""
        name = _without_places(place)
        if name not in self._names:
            self._names[name] = None
            self._policy.log(name)

    def add_unknown(self, kind: type[Body], name: str, path: str) -> None:
        """Ignore a field that `kind` does not have, at `path`. Raises `BodyError` where it is to be rejected."""
        if (kind, name) in self._unknown:
            return
        place = f"{path}.{_shown(name)}" if path else _shown(name)
        if len(self._unknown) == _MOST_NAMES:
            raise BodyError(
                f"more than {_MOST_NAMES} unknown fields, including {quoted(place)}", place, "unknown_parameter"
            )
        self._unknown.add((kind, name))
        if not self._policy.ignore_unknown and name not in (INSIDE if path else IN_BODIES):
            self._check_spelling(kind, name, place)
        self.add(place)

    def refuses(self, kind: type[Body], name: str) -> bool:
        """Whether an unknown field is rejected as a misspelling wherever it stands."""
        return not self._policy.ignore_unknown and bool(misspelt(kind, name))

    def _check_spelling(self, kind: type[Body], name: str, place: str) -> None:
        """Raise `BodyError` for a misspelling, and inside of something else for each name."""
        hint = misspelt(kind, name)
        is_inside = place != _shown(name)
        if hint or is_inside:
            self._policy.log_refused(_without_places(place))
            advice = kind.elsewhere.get(name)
            if advice is not None:
                raise BodyError(f"unknown field {quoted(place)}: {advice}", place, "unknown_parameter")
            hint = hint or nearest(name, field_names(kind))
            way_out = f"{' A' if hint else '; a'} server with --ignore-unknown-fields ignores it"
            raise BodyError(f"unknown field {quoted(place)}{hint}{way_out}", place, "unknown_parameter")

    def add_values(self, values: Mapping[str, int], known: tuple[str, ...], path: str) -> None:
        """Ignore the values, each with its place, of the list at `path`.

        Raises `BodyError` for too many, and for one that is close to a known one, unless what is unknown is ignored.
        """
        _check_number(values, path)
        for name, index in values.items():
            shown = _shown(name)
            if not self._policy.ignore_unknown and len(name) <= _LONGEST_NAME:
                hint = nearest(name, known, alike=_TYPO)
                if hint:
                    place = f"{path}[{index}]={shown}"
                    raise BodyError(f"unknown value {quoted(place)}{hint}", place, "unknown_parameter")
            self.add(f"{path}={shown}")

    def add_types(self, types: Collection[str], path: str, elsewhere: Mapping[str, str]) -> None:
        """Ignore objects of these types in the list at `path`.

        Raises `BodyError` for too many, and for one of `elsewhere`, with what that says, unless what is unknown is
        ignored.
        """
        _check_number(types, f"{path}.type")
        for name in types:
            if name in elsewhere and not self._policy.ignore_unknown:
                place = f"{path}.type"
                raise BodyError(f"{place}={name!r}: {elsewhere[name]}", place, "invalid_value")
            self.add(f"{path}.type={_shown(name)}")

    def header(self) -> str | None:
        """The value of a header that names them, if there are any."""
        text = ", ".join(self._names)
        return (text if len(text) <= _LONGEST_HEADER else f"{text[: _LONGEST_HEADER - 5]}, ...") or None


def ignored_by(scope: Scope, policy: FieldPolicy) -> IgnoredFields:
    """Collects the ignored fields of a request; `http.operation` names them in the response."""
    ignored: IgnoredFields = scope.setdefault(IGNORED, IgnoredFields(policy))
    return ignored


def _check_number(values: Collection[str], path: str) -> None:
    if len(values) > _MOST_NAMES:
        raise BodyError(f"{path}: more than {_MOST_NAMES} unknown values", path, "unknown_parameter")


def _without_places(place: str) -> str:
    return re.sub(r"\[\d+\]", "", place)


def _shown(name: str) -> str:
    """A name that a client chose, short and of printable ASCII."""
    text = re.sub(r"[^\x21-\x2b\x2d-\x7e]", "?", name[: _LONGEST_NAME + 1])
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 3]}..."


IN_BODIES = frozenset((
    # OpenRouter
    "models", "top_a",
))  # fmt: skip
"""Besides the messages, or the input, where only what looks like a misspelling is rejected."""

INSIDE = frozenset((
    # LiteLLM, and answers of other servers that come back as messages
    "extra_content", "provider_specific_fields", "reasoning_details", "reasoning_items", "reasoning_signature",
    "signature",
    "thinking_blocks", "thought_signature",
    # Groq, LangChain, Copilot
    "annotations", "copilot_cache_control", "created_by", "end_turn", "executed_tools", "index",
    # Anthropic's
    "cache_control", "citations", "eager_input_streaming", "input_examples",
    # OpenAI's libraries, which put parsed text alongside the text; Codex
    "internal_chat_message_metadata_passthrough", "parsed", "parsed_arguments",
    # What frameworks keep with a message
    "additional_kwargs", "created_at", "id", "metadata", "response_metadata", "timestamp",
    # vLLM's answers that come back
    "token_ids",
))  # fmt: skip
"""In messages, parts, calls, tools and items."""
