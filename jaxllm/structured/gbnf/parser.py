"""Reading GBNF: https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md.

Two things more are taken than llama.cpp takes: a line that begins with `|` goes on with the rule above it, and any
punctuation may have a backslash.
"""

import re
from typing import Final

from jaxllm.structured.gbnf.nodes import LAST, SURROGATES, Alt, Chars, Node, Ref, Repeat, Seq, Token, normal

ROOT: Final = "root"
MAX_TIMES: Final = 10_000
"""Most times that a repetition may ask for; llama.cpp has 2,000."""
MAX_GROUPS: Final = 100
"""Most groups inside one another."""

_SPACE: Final = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_LINES: Final = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME: Final = re.compile(r"[\w-]+")
_DEFINED: Final = re.compile(r"[\w-]+(?:[ \t]|#[^\r\n]*)*::=")
_TOKEN: Final = re.compile(r"<(?:\[\d+\]|[^<>\s]+)>")
_TIMES: Final = re.compile(r"\{\s*(\d*)\s*(,?)\s*(\d*)\s*\}")
_HEX: Final = {"x": 2, "u": 4, "U": 8}
_CONTROL: Final = {"n": "\n", "r": "\r", "t": "\t"}
_PUNCTUATION: Final = set("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


def parse(grammar: str) -> dict[str, Node]:
    """The rules by their names, in their order. Raises `ValueError` that says what is wrong, and where."""
    rules = _Parser(grammar).rules()
    names = [name for name in _references(rules) if name not in rules]
    if names:
        raise ValueError(f"rule {names[0][:80]!r} is used but not defined")
    if ROOT not in rules:
        raise ValueError(f"rule {ROOT!r}, which defines the output, is missing")
    return rules


def _references(rules: dict[str, Node]) -> list[str]:
    found, waiting = [], list(rules.values())
    while waiting:
        match waiting.pop():
            case Ref(name):
                found.append(name)
            case Seq(items) | Alt(items):
                waiting += items
            case Repeat(item):
                waiting.append(item)
    return found


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0
        self._depth = 0

    def rules(self) -> dict[str, Node]:
        """All of them; the last one of a name counts."""
        found: dict[str, Node] = {}
        self._skip(_LINES)
        while self._place < len(self._text):
            name = self._take(_NAME, "a rule name")[0]
            self._skip(_SPACE)
            self._expect("::=")
            self._skip_to_item()
            found[name] = self._alternatives(nested=False)
            if self._next() not in ("", "\r", "\n"):
                raise self._error("expected the end of the rule")
            self._skip(_LINES)
        return found

    def _alternatives(self, *, nested: bool) -> Node:
        items = [self._sequence(nested=nested)]
        while True:
            here = self._place
            self._skip(_LINES)
            if self._next() != "|":
                self._place = here
                break
            self._place += 1
            self._skip_to_item()
            items.append(self._sequence(nested=nested))
        return items[0] if len(items) == 1 else Alt(tuple(items))

    def _sequence(self, *, nested: bool) -> Node:
        items: list[Node] = []
        space = _LINES if nested else _SPACE
        self._skip(space)
        while (character := self._next()) not in ("", "|", ")", "\r", "\n"):
            if character == '"':
                items.append(Seq(tuple(self._literal())))
            else:
                items.append(self._item(character))
            self._skip(space)
            self._repeat(items, space)
        return items[0] if len(items) == 1 else Seq(tuple(items))

    def _repeat(self, items: list[Node], space: re.Pattern[str]) -> None:
        """Repeat the last item, as often as that is said here."""
        for _ in range(MAX_GROUPS):
            times = self._times()
            if times is None:
                return
            items[-1] = Repeat(items[-1], *times)
            self._skip(space)
        raise self._error(f"at most {MAX_GROUPS} repetitions may follow the same item")

    def _item(self, character: str) -> Node:
        if character == "[":
            return self._class()
        if character == "(":
            return self._group()
        if character == ".":
            self._place += 1
            return Chars(normal([], negated=True))
        if character == "<":
            return Token(self._take(_TOKEN, "a token, as in <think> or <[1000]>")[0])
        if _NAME.match(character):
            return Ref(self._take(_NAME, "a name")[0])
        raise self._error("expected a string, a character class, a group or a rule name")

    def _group(self) -> Node:
        self._depth += 1
        if self._depth > MAX_GROUPS:
            raise self._error(f"groups may be nested at most {MAX_GROUPS} deep")
        self._place += 1
        inner = self._alternatives(nested=True)
        self._skip(_LINES)
        self._expect(")")
        self._depth -= 1
        return inner

    def _times(self) -> tuple[int, int | None] | None:
        """How often the last item comes, if that is said here."""
        character = self._next()
        if character and character in "*+?":
            self._place += 1
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[character]
        if character != "{":
            return None
        found = self._take(_TIMES, "a repetition count, as in {3}, {1,} or {1,3}")
        least, comma, most = found.groups()
        if not least and not most:
            raise self._error("expected a repetition count, as in {3}, {1,} or {1,3}")
        first = int(least or 0)
        last = first if not comma else int(most) if most else None
        if max(first, last or 0) > MAX_TIMES:
            raise self._error(f"a repetition count may be at most {MAX_TIMES}")
        if last is not None and last < first:
            raise self._error(f"a repetition has the minimum {first} and the smaller maximum {last}")
        return first, last

    def _literal(self) -> list[Node]:
        self._place += 1
        codes: list[int] = []
        while self._next() != '"':
            codes.append(self._character("the end of a string"))
            if len(codes) > 1 and 0xD800 <= codes[-2] < 0xDC00 <= codes[-1] <= SURROGATES[1]:
                # Two halves, as JSON writes them.
                low, high = codes.pop(), codes.pop()
                codes.append(0x10000 + ((high - 0xD800) << 10) + low - 0xDC00)
        self._place += 1
        if any(SURROGATES[0] <= code <= SURROGATES[1] for code in codes):
            raise self._error("a lone surrogate in a string")
        return [Chars(((code, code),)) for code in codes]

    def _class(self) -> Node:
        self._place += 1
        negated = self._next() == "^"
        self._place += negated
        ranges: list[tuple[int, int]] = []
        while self._next() != "]":
            first = last = self._character("the end of a character class")
            if self._next() == "-" and self._text[self._place + 1 : self._place + 2] not in ("]", ""):
                self._place += 1
                last = self._character("the end of a range")
            if last < first:
                raise self._error("a character range ends before it begins")
            ranges.append((first, last))
        self._place += 1
        found = normal(ranges, negated=negated)
        if not found:
            raise self._error("an empty character class")
        return Chars(found)

    def _character(self, wanted: str) -> int:
        """A character, or what a backslash stands for."""
        character = self._next()
        if not character:
            raise self._error(f"expected {wanted}")
        self._place += 1
        if character != "\\":
            return ord(character)
        kind = self._next()
        self._place += 1
        if kind in _HEX:
            digits = self._text[self._place : self._place + _HEX[kind]]
            if not re.fullmatch(r"[0-9a-fA-F]+", digits) or len(digits) != _HEX[kind] or int(digits, 16) > LAST:
                raise self._error(f"expected {_HEX[kind]} hexadecimal digits")
            self._place += _HEX[kind]
            return int(digits, 16)
        if kind in _PUNCTUATION or kind in _CONTROL:
            return ord(_CONTROL.get(kind, kind))
        raise self._error("unknown escape sequence")

    def _next(self) -> str:
        return self._text[self._place : self._place + 1]

    def _skip(self, space: re.Pattern[str]) -> None:
        found = space.match(self._text, self._place)
        assert found is not None
        self._place = found.end()

    def _skip_to_item(self) -> None:
        """Skip lines, too, unless the next rule begins there: what comes here is empty then."""
        here = self._place
        self._skip(_LINES)
        if _DEFINED.match(self._text, self._place) and re.search(r"[\r\n]", self._text[here : self._place]):
            self._place = here

    def _expect(self, text: str) -> None:
        if not self._text.startswith(text, self._place):
            raise self._error(f"expected {text!r}")
        self._place += len(text)

    def _take(self, pattern: re.Pattern[str], wanted: str) -> re.Match[str]:
        found = pattern.match(self._text, self._place)
        if found is None:
            raise self._error(f"expected {wanted}")
        self._place = found.end()
        return found

    def _error(self, message: str) -> ValueError:
        line = self._text.count("\n", 0, self._place) + 1
        here = self._text[self._place : self._place + 20]
        return ValueError(f"line {line}: {message}, found {here!r}" if here else f"line {line}: {message} at the end")
