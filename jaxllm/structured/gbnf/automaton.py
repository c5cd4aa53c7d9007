"""Regular parts of a grammar as automata of their characters (Glushkov's), and when two get in each other's way."""

from dataclasses import dataclass, field

from jaxllm.structured.gbnf.analysis import Analysis
from jaxllm.structured.gbnf.nodes import Alt, Chars, Node, Ref, Repeat, Seq


@dataclass
class Automaton:
    """The characters and successors of each position. Repetitions count as if they had no end."""

    chars: list[int] = field(default_factory=list)
    next: list[set[int]] = field(default_factory=list)
    first: set[int] = field(default_factory=set)
    last: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, node: Node, analysis: Analysis) -> "Automaton":
        """The automaton of a regular node."""
        made = cls()
        _, made.first, made.last = made._add(node, analysis)
        return made

    def goes_on(self, places: set[int], characters: int) -> bool:
        """Whether one of these characters may come after one of these places."""
        return any(self.chars[following] & characters for place in places for following in self.next[place])

    def _add(self, node: Node, analysis: Analysis) -> tuple[bool, set[int], set[int]]:
        """Whether the node may be empty, and its first and last places."""
        match node:
            case Chars(ranges):
                self.chars.append(analysis.alphabet.bits(ranges))
                self.next.append(set())
                place = {len(self.chars) - 1}
                return False, place, place
            case Ref(name):
                return self._add(analysis.rules[name], analysis)
            case Repeat(item, least, most):
                if most == 0:
                    return True, set(), set()
                empty, first, last = self._add(item, analysis)
                if most != 1:
                    self._join(last, first)
                return empty or least == 0, first, last
            case Alt(items):
                parts = [self._add(item, analysis) for item in items]
                return (
                    any(part[0] for part in parts),
                    {place for part in parts for place in part[1]},
                    {place for part in parts for place in part[2]},
                )
            case Seq(items):
                empty, first, last = True, set[int](), set[int]()
                for item in items:
                    its_empty, its_first, its_last = self._add(item, analysis)
                    self._join(last, its_first)
                    first = first | its_first if empty else first
                    last = last | its_last if its_empty else its_last
                    empty = empty and its_empty
                return empty, first, last
            case _:
                raise AssertionError(node)

    def _join(self, before: set[int], behind: set[int]) -> None:
        for place in before:
            self.next[place] |= behind


def swallows(longer: Automaton, shorter: Automaton, behind: int) -> bool:
    """Whether some text is complete as the shorter one, may be followed by one of the characters `after`, and the
    longer one would take that character as its own.
    """
    waiting = [(a, b) for a in longer.first for b in shorter.first if longer.chars[a] & shorter.chars[b]]
    seen = set(waiting)
    while waiting:
        here, there = waiting.pop()
        if there in shorter.last and longer.goes_on({here}, behind):
            return True
        for a in longer.next[here]:
            for b in shorter.next[there]:
                if (a, b) not in seen and longer.chars[a] & shorter.chars[b]:
                    seen.add((a, b))
                    waiting.append((a, b))
    return False
