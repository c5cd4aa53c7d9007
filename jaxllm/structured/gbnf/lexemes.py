"""Which parts of a grammar may be terminals of llguidance.

Its terminals take as much text as they can, and what they have taken is theirs: GBNF knows no such thing. A terminal of
one character is always right, since no character begins another one. Larger ones make masks many times faster, and are
right where nothing that may follow could have been taken: `swallows` finds that out.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from jaxllm.structured.gbnf.analysis import Analysis
from jaxllm.structured.gbnf.automaton import Automaton, swallows
from jaxllm.structured.gbnf.nodes import Alt, Chars, Node, Ref, Repeat, Seq, children

MOST_LEXEMES: Final = 300
"""Different terminals that are compared with each other; where there were more, all are of one character."""
MOST_ROUNDS: Final = 24
"""Most times that terminals are cut into their parts, and compared again: there are as many as they are deep."""
MOST_NODES: Final = 300
"""Nodes of a terminal, see `Analysis.size`; larger parts are cut."""
MOST_REGEX: Final = 5000
"""Characters of an expression at most."""


class Lexemes:
    """The parts of a grammar that are terminals: `regex` has their expressions."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._automata: dict[str, Automaton] = {}
        self._cut: set[str] = set()
        """Expressions that may not be terminals."""
        self._written: dict[Node, str | None] = {}
        self._only_characters = False
        for _ in range(MOST_ROUNDS):
            clash = self._clashing()
            self._cut |= clash
            if not clash:
                return
        self._only_characters = True

    def regex(self, node: Node) -> str | None:
        """The expression of a node that is a terminal; None for one that is cut into its parts."""
        if self._only_characters and not isinstance(node, Chars):
            return None
        written = self._expression(node)
        return None if written is None or written in self._cut else written

    def _expression(self, node: Node) -> str | None:
        if node not in self._written:
            self._written[node] = self._make(node)
        return self._written[node]

    def _make(self, node: Node) -> str | None:
        analysis = self._analysis
        if isinstance(node, Chars):
            return regex_of(node, analysis.rules)
        size = analysis.size(node)
        if size is None or size > MOST_NODES or analysis.empty(node):
            return None
        written = regex_of(node, analysis.rules)
        if len(written) > MOST_REGEX:
            return None
        if written not in self._automata:
            self._automata[written] = Automaton.of(node, analysis)
        return written

    def _clashing(self) -> set[str]:
        """Terminals of several characters that would take what others are to have."""
        behind: dict[str, int] = {}
        for node in self._terminals():
            written = self.regex(node)
            assert written is not None
            behind[written] = behind.get(written, 0) | self._analysis.follow.get(node, 0)
            if written not in self._automata:
                self._automata[written] = Automaton.of(node, self._analysis)
        long = {each for each in behind if any(self._automata[each].next)}
        if len(behind) > MOST_LEXEMES:
            return long
        return {
            each
            for each in long
            if any(swallows(self._automata[each], self._automata[other], behind[other]) for other in behind)
        }

    def _terminals(self) -> Iterator[Node]:
        """The nodes that are terminals as things are."""
        seen: set[str] = set()
        names = ["root"]
        while names:
            name = names.pop()
            if name in seen:
                continue
            seen.add(name)
            waiting: list[Node] = [self._analysis.rules[name]]
            while waiting:
                node = waiting.pop()
                if self.regex(node) is not None:
                    yield node
                elif isinstance(node, Ref):
                    names.append(node.name)
                else:
                    waiting += children(node)


def regex_of(node: Node, rules: Mapping[str, Node]) -> str:
    """The expression of a regular node, with rules in place of their names."""
    match node:
        case Chars(ranges):
            if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
                return _character(ranges[0][0])
            return f"[{''.join(_range(*each) for each in ranges)}]"
        case Ref(name):
            return regex_of(rules[name], rules)
        case Seq(items):
            return "".join(regex_of(item, rules) for item in items)
        case Alt(items):
            return f"(?:{'|'.join(regex_of(item, rules) for item in items)})"
        case Repeat(item, least, most):
            return f"(?:{regex_of(item, rules)}){times(least, most)}"
        case _:
            raise AssertionError(node)


def times(least: int, most: int | None) -> str:
    """How often something comes, as expressions and Lark write it."""
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
    return short or (f"{{{least},{'' if most is None else most}}}")


def _range(first: int, last: int) -> str:
    return _character(first) if first == last else f"{_character(first)}-{_character(last)}"


def _character(code: int) -> str:
    character = chr(code)
    return character if character.isascii() and character.isalnum() else f"\\x{{{code:x}}}"
