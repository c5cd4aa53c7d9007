"""Control tokens, such as `<|im_end|>`, which chat templates write and the contents of messages do not.

Where a content has the text of one, the text stays text. The chat template sees a random word in its place, so that in
the rendered prompt its own control tokens can be told from such texts. The prompt is then encoded by a second backend
of the same tokenizer, to which its control tokens have secret names: all else it encodes alike, in one call, so that
the tokens around are those that plain text has there.
"""

import re
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import msgspec

_BEGINNINGS = (2, 6)
"""Lengths of what is looked for before the whole token: there may be hundreds, and most begin alike."""
_Groups: TypeAlias = "dict[str, _Groups]"


class ChatPrompt(str):
    """A rendered conversation with texts in it that look like control tokens.

    `escaped` is the prompt for the backend with secret names. `prompt + text` keeps both; `text` may have control
    tokens.
    """

    __slots__ = ("escaped",)
    if TYPE_CHECKING:
        escaped: "Escaped"

    def __new__(cls, text: str, escaped: "Escaped") -> Self:
        """The prompt `text`."""
        made = super().__new__(cls, text)
        made.escaped = escaped
        return made

    def escaped_as(self, escaped: str) -> "ChatPrompt":
        """The same text, encoded as another one in which control tokens have their secret names."""
        return ChatPrompt(str(self), self.escaped.with_text(escaped))

    def __add__(self, text: str) -> "ChatPrompt":
        return ChatPrompt(str(self) + text, self.escaped.followed_by(text))


class Escaped:
    """Text in which control tokens have their secret names."""

    def __init__(self, text: str, control: "ControlTokens") -> None:
        self.text = text
        self._control = control

    def with_text(self, text: str) -> "Escaped":
        """Another text."""
        return Escaped(text, self._control)

    def followed_by(self, text: str) -> "Escaped":
        """With more text after, whose control tokens are meant."""
        return Escaped(self.text + self._control.named_secretly(text), self._control)


class ControlTokens:
    """The special tokens of a tokenizer, and its second backend. Safe to use from several threads."""

    def __init__(self, backend: Any) -> None:
        """`backend` is a tokenizer of `tokenizers`."""
        self._backend = backend
        special = [token for token in backend.get_added_tokens_decoder().values() if token.special and token.content]
        # The longest first: where one begins another, it is meant.
        self._texts = sorted({token.content for token in special}, key=lambda text: (-len(text), text))
        self._groups = _grouped(self._texts, _BEGINNINGS)
        self._normalizer = backend.normalizer if any(token.normalized for token in special) else None
        # Nobody who writes a message knows it.
        nonce = secrets.token_hex(12)
        self._secret = {text: f"{nonce}x{index:x}z" for index, text in enumerate(self._texts)}
        self._lock = threading.Lock()

    def in_text(self, text: str) -> list[str]:
        """The control tokens whose text stands in `text`, the longest first."""
        found = list(_found(text, self._groups))
        return sorted(found, key=self._texts.index) if found else found

    def concerns(self, value: Any) -> bool:
        """Whether a text inside `value` would be encoded as control tokens."""
        # Looking through one long text is faster, and no token has this character.
        text = "\0".join(_texts_in(value))
        if self.in_text(text):
            return True
        return self._normalizer is not None and bool(self.in_text(self._normalizer.normalize_str(text)))

    def named_secretly(self, text: str) -> str:
        """The text with secret names for the control tokens in it."""
        for each in self.in_text(text):
            text = text.replace(each, self._secret[each])
        return text

    @property
    def backend(self) -> Any:
        """The tokenizer to which control tokens have secret names; made when it is first asked for.

        That may take a second, during which no other thread runs: servers ask for it before they take requests.
        """
        with self._lock:
            return self._renamed

    @cached_property
    def _renamed(self) -> Any:
        from tokenizers import Tokenizer as Backend

        state = msgspec.json.decode(self._backend.to_str())
        for token in state["added_tokens"]:
            token["content"] = self._secret.get(token["content"], token["content"])
        model = state["model"]
        vocabulary = model.get("vocab")
        if isinstance(vocabulary, dict):
            model["vocab"] = {self._secret.get(text, text): token_id for text, token_id in vocabulary.items()}
        elif isinstance(vocabulary, list):
            model["vocab"] = [[self._secret.get(text, text), *rest] for text, *rest in vocabulary]
        if model.get("unk_token") in self._secret:
            model["unk_token"] = self._secret[model["unk_token"]]
        made = Backend.from_str(msgspec.json.encode(state).decode())
        for text, name in self._secret.items():
            assert made.token_to_id(name) == self._backend.token_to_id(text), text
        return made


class Disguise:
    """Hides the texts of control tokens in one conversation from its template."""

    def __init__(self, control: ControlTokens, template: str) -> None:
        """What `template` looks for in contents itself is not hidden from it in messages of the assistant."""
        self._control = control
        self._nonce = secrets.token_hex(12)
        self._names: dict[str, str] = {}
        self._looked_for = looked_for(template)

    def hide_in_messages(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The messages with names in place of the texts of control tokens."""
        return [self.hide(each, shown=self._looked_for if each.get("role") == "assistant" else ()) for each in messages]

    def hide(self, value: Any, *, shown: Iterable[str] = ()) -> Any:
        """A copy of `value` with names in place of the texts of control tokens but those in one of `shown`."""
        if isinstance(value, str):
            for text in self._control.in_text(value):
                if not any(text in each for each in shown):
                    name = self._names.setdefault(text, f"{self._nonce}x{len(self._names):x}z")
                    value = value.replace(text, name)
            return value
        if isinstance(value, Mapping):
            return {self.hide(name, shown=shown): self.hide(item, shown=shown) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.hide(item, shown=shown) for item in value]
        return value

    def reveal(self, text: str) -> str:
        """The text with the texts of control tokens back in it."""
        for original, name in self._names.items():
            text = text.replace(name, original)
        return text

    def prompt(self, rendered: str) -> ChatPrompt:
        """The prompt that the template has rendered."""
        named = self._control.named_secretly(rendered)
        return ChatPrompt(self.reveal(rendered), Escaped(self.reveal(named), self._control))


_LOOKS = re.compile(
    r"""\.(?:split|rsplit|replace|strip|lstrip|rstrip|startswith|endswith|find|index)\(\s*(['"])(.+?)\1"""
    r"""|(['"])([^'"]+)\3\s+(?:not\s+)?in\b"""
)


@lru_cache(maxsize=8)
def looked_for(template: str) -> tuple[str, ...]:
    """The texts that a template looks for in contents: `content.split('</think>')`, `'[THINK]' in content`."""
    return tuple({found[2] or found[4] for found in _LOOKS.finditer(template)})


def _grouped(texts: Sequence[str], lengths: Sequence[int]) -> "_Groups":
    """Texts by their beginnings of the first length, these by those of the second, and so on."""
    if not lengths:
        return {text: {} for text in texts}
    groups: dict[str, list[str]] = {}
    for text in texts:
        groups.setdefault(text[: lengths[0]], []).append(text)
    return {beginning: _grouped(each, lengths[1:]) for beginning, each in groups.items()}


def _found(text: str, groups: "_Groups") -> Iterator[str]:
    """The whole texts among the groups that `text` has; most have not even the beginning of one."""
    for beginning, inner in groups.items():
        if beginning in text:
            if inner:
                yield from _found(text, inner)
            else:
                yield beginning


def _texts_in(value: Any) -> Iterator[str]:
    """All texts inside a value, in no order; however deep it is."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, Mapping):
            waiting += each.keys()
            waiting += each.values()
        elif isinstance(each, (list, tuple)):
            waiting += each
