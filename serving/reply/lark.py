"""Grammars of calls, in llguidance's Lark (https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md)."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_SEPARATORS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as chat templates show it to models; free whitespace could go on without end."""

FREE_TEXT = "/(?s:.*)/"
"""Any text; special tokens are none."""


class Lark:
    """Collects the rules of a grammar."""

    def __init__(self, token_ids: Mapping[str, int]) -> None:
        """`token_ids` are of the tokenizer's added tokens: as such tokens, not as characters, a model writes them."""
        self._token_ids = token_ids
        self._rules: list[str] = []
        known = sorted(filter(None, token_ids), key=len, reverse=True)
        self._markers = re.compile(f"({'|'.join(map(re.escape, known))})") if known else None

    def has_token(self, text: str) -> bool:
        """Whether this text is one token that no other text can be."""
        return text in self._token_ids

    def begins_with_token(self, expression: str) -> bool:
        """Whether an expression begins with a token that no text can be."""
        return expression.startswith("<[")

    def text(self, text: str) -> str:
        """An expression for exactly this text."""
        parts = [text] if self._markers is None else self._markers.split(text)
        return " ".join(self._literal(part) for part in parts if part) or '""'

    def _literal(self, text: str) -> str:
        token_id = self._token_ids.get(text)
        return json.dumps(text, ensure_ascii=False) if token_id is None else f"<[{token_id}]>"

    def json(self, schema: Mapping[str, Any]) -> str:
        """An expression for JSON that is valid by a schema."""
        options = {**_SEPARATORS, **schema.get("x-guidance", {})}
        return self.rule(f"%json {json.dumps({**schema, 'x-guidance': options})}")

    def rule(self, expression: str, attributes: str = "") -> str:
        """A rule of its own for this expression; returns its name."""
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {expression}")
        return name

    def text_until(self, end: str, without: Sequence[str] = ()) -> str:
        """An expression for any text up to the first `end`, with it; the text has nothing of `without` in it."""
        head, *rest = [end] if self._markers is None else self._markers.split(end, maxsplit=1)
        text = f"/(?s:.*){_regex(head)}/" if rest else FREE_TEXT
        if without:
            # Only terminals, whose names are in capitals, may be negated.
            name = f"T{len(self._rules)}"
            self._rules.append(f"{name}: {text} & ~/(?s:.*)({'|'.join(map(_regex, without))})(?s:.*)/")
            text = name
        if rest:
            # A token ends the text, which no character can be; what stands before it is read with the text.
            return f"{self.rule(text)} {self.text(''.join(rest))}"
        return self.rule(text, f"[suffix={json.dumps(end)}]")

    def grammar(self, start: str) -> str:
        """The whole grammar."""
        return "\n".join([f"start: {start}", *self._rules]) + "\n"


def _regex(text: str) -> str:
    """A regular expression, as it stands between slashes, for exactly this text."""
    return re.escape(text).replace("\\\n", "\\n").replace("/", r"\/")


def either(expressions: Sequence[str]) -> str:
    """One of several."""
    return f"({' | '.join(expressions)})"


def parameter_list(lark: Lark, expressions: Mapping[str, str], required: Sequence[str], separator: str) -> str:
    """Named parameters in order with separators between them; those not required may be missing.

    `first` is what may come while nothing has been written, `rest` what may follow something.
    """
    between = lark.text(separator)
    first = rest = lark.rule('""')
    for key, expression in reversed(list(expressions.items())):
        skipped_first, skipped_rest = ("", "") if key in required else (f" | {first}", f" | {rest}")
        first = lark.rule(f"{expression} {rest}{skipped_first}")
        rest = lark.rule(f"{between} {expression} {rest}{skipped_rest}")
    return first
