"""GBNF as a grammar in llguidance's own form, which is like Lark's."""

from jaxllm.structured.gbnf.analysis import Analysis
from jaxllm.structured.gbnf.lexemes import Lexemes, times
from jaxllm.structured.gbnf.nodes import Alt, Chars, Node, Ref, Repeat, Seq, Token
from jaxllm.structured.gbnf.parser import ROOT, parse

_MOST_NESTED = 16


def lark_of_gbnf(grammar: str) -> str:
    """A Lark grammar of the same language. Raises `ValueError`, which says what is wrong and where."""
    rules = {name: _parted(rule) for name, rule in parse(grammar).items()}
    analysis = Analysis(rules)
    return _Writer(analysis).grammar()


def _parted(node: Node) -> Node:
    """The same, written so that its parts are not empty where that can be: `x*` is `x+` or nothing."""
    match node:
        case Seq(items):
            return _nested([_parted(item) for item in items])
        case Alt(items):
            return Alt(tuple(map(_parted, items)))
        case Repeat(item, 0, most) if most is None or most > 1:
            return Repeat(Repeat(_parted(item), 1, most), 0, 1)
        case Repeat(item, least, most):
            return Repeat(_parted(item), least, most)
    return node


def _nested(items: list[Node]) -> Node:
    """A sequence in pairs, so that what cannot be one terminal loses its end first: mostly that is whitespace."""
    if len(items) < 3 or len(items) > _MOST_NESTED or all(isinstance(item, Chars) for item in items):
        return Seq(tuple(items))
    made = items[0]
    for item in items[1:]:
        made = Seq((made, item))
    return made


class _Writer:
    def __init__(self, analysis: Analysis) -> None:
        self._rules = analysis.rules
        self._lexemes = Lexemes(analysis)
        self._names = {ROOT: "start"}

    def grammar(self) -> str:
        """All rules that the output may go through."""
        lines = ["%llguidance {}"]
        written: set[str] = set()
        while left := [name for name in self._names if name not in written]:
            for name in left:
                written.add(name)
                lines.append(f"{self._names[name]}: {self._write(self._rules[name])}")
        return "\n".join(lines) + "\n"

    def _write(self, node: Node) -> str:
        regex = self._lexemes.regex(node)
        if regex is not None:
            return f"/{regex}/"
        match node:
            case Token(text):
                return text
            case Ref(name):
                return self._names.setdefault(name, f"r{len(self._names)}")
            case Seq(items):
                return f"({' '.join(map(self._write, items))})" if items else '""'
            case Alt(items):
                return f"({' | '.join(map(self._write, items))})"
            case Repeat(item, least, most):
                return '""' if most == 0 else f"({self._write(item)}){times(least, most)}"
            case _:
                raise AssertionError(node)
