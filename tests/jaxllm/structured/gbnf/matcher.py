"""An independent matcher of GBNF, character by character: slow, without any terminals."""

from jaxllm.structured.gbnf.nodes import Alt, Chars, Node, Ref, Repeat, Seq
from jaxllm.structured.gbnf.parser import parse


class Matcher:
    """Where a part of the grammar may end in a text; texts of recursive rules without left recursion."""

    def __init__(self, grammar: str) -> None:
        self._rules = parse(grammar)

    def accepts(self, text: str) -> bool:
        """Whether the whole text is of the grammar."""
        self._known: dict[tuple[int, int], frozenset[int]] = {}
        return len(text) in self._ends(self._rules["root"], text, 0)

    def _ends(self, node: Node, text: str, start: int) -> frozenset[int]:
        key = (id(node), start)
        if key not in self._known:
            self._known[key] = frozenset(self._find(node, text, start))
        return self._known[key]

    def _find(self, node: Node, text: str, start: int) -> set[int]:
        match node:
            case Chars(ranges):
                code = ord(text[start]) if start < len(text) else -1
                return {start + 1} if any(first <= code <= last for first, last in ranges) else set()
            case Ref(name):
                return set(self._ends(self._rules[name], text, start))
            case Alt(items):
                return {end for item in items for end in self._ends(item, text, start)}
            case Seq(items):
                places = {start}
                for item in items:
                    places = {end for place in places for end in self._ends(item, text, place)}
                return places
            case Repeat(item, least, most):
                places, found = {start}, {start} if least == 0 else set()
                seen: set[int] = set()
                count = 0
                while places and (most is None or count < most):
                    count += 1
                    places = {end for place in places for end in self._ends(item, text, place)}
                    if most is None and count > least:
                        places -= seen
                    if count >= least:
                        found |= places
                        seen |= places
                return found
            case _:
                raise AssertionError(node)
