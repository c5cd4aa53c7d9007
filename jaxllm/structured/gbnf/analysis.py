"""The sets that may begin, follow and repeat: of every node of a grammar, in sets of characters (`Alphabet`)."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator

from jaxllm.structured.gbnf.nodes import LAST, Alt, Chars, Node, Ranges, Ref, Repeat, Seq, Token, children


class Analysis:
    """Analysis of a grammar's rules. `first` and `follow` take too many characters rather than too few."""

    def __init__(self, rules: dict[str, Node]) -> None:
        self.rules = {name: rules[name] for name in _from_below(rules)}
        """Most of them after those that they name: so few rounds find out all."""
        self.alphabet = Alphabet({node.ranges for rule in rules.values() for node in walk(rule) if type(node) is Chars})
        self._empty = dict.fromkeys(rules, False)
        self._first = dict.fromkeys(rules, 0)
        self._of_rule = dict.fromkeys(rules, 0)
        self.follow: dict[Node, int] = {}
        """Characters that may follow a node."""
        _iterate_until_stable(self._begin)
        _iterate_until_stable(self._follow)
        self._sizes: dict[str, int] = {}
        """Sizes of regular rules."""
        self._measure()

    def empty(self, node: Node) -> bool:
        """Whether a node may be nothing."""
        match node:
            case Chars() | Token():
                return False
            case Ref(name):
                return self._empty[name]
            case Seq(items):
                return all(map(self.empty, items))
            case Alt(items):
                return any(map(self.empty, items))
            case Repeat(item, least):
                return least == 0 or self.empty(item)

    def first(self, node: Node) -> int:
        """The characters that a node may begin with."""
        match node:
            case Chars(ranges):
                return self.alphabet.bits(ranges)
            case Token():
                return 0
            case Ref(name):
                return self._first[name]
            case Seq(items):
                found = 0
                for item in items:
                    found |= self.first(item)
                    if not self.empty(item):
                        break
                return found
            case Alt(items):
                found = 0
                for item in items:
                    found |= self.first(item)
                return found
            case Repeat(item, _, most):
                return 0 if most == 0 else self.first(item)

    def size(self, node: Node) -> int | None:
        """How many nodes an expression for it has, rules as often as they are named; None where none can say it.

        That is so of rules that in some way contain themselves, and of tokens.
        """
        match node:
            case Ref(name):
                return self._sizes.get(name)
            case Token():
                return None
        total = 1
        for child in children(node):
            size = self.size(child)
            if size is None:
                return None
            total += size
        return total

    def _begin(self) -> bool:
        changed = False
        for name, rule in self.rules.items():
            found = (self.empty(rule), self.first(rule))
            changed |= found != (self._empty[name], self._first[name])
            self._empty[name], self._first[name] = found
        return changed

    def _follow(self) -> bool:
        before = dict(self._of_rule)
        for name, rule in reversed(self.rules.items()):
            self._spread(rule, self._of_rule[name])
        return before != self._of_rule

    def _spread(self, node: Node, behind: int) -> None:
        """Record that these may follow a node, and so follow whatever it ends with."""
        self.follow[node] = self.follow.get(node, 0) | behind
        match node:
            case Ref(name):
                self._of_rule[name] |= behind
            case Alt(items):
                for item in items:
                    self._spread(item, behind)
            case Repeat(item, _, most):
                self._spread(item, behind | (self.first(item) if most != 1 else 0))
            case Seq(items):
                for item in reversed(items):
                    self._spread(item, behind)
                    behind = self.first(item) | (behind if self.empty(item) else 0)

    def _measure(self) -> None:
        """Size rules that only need what has a size, until there are no more."""
        users: dict[str, set[str]] = {name: set() for name in self.rules}
        missing: dict[str, int] = {}
        for name, rule in self.rules.items():
            used = set(_names_in(rule))
            missing[name] = len(used)
            for each in used:
                users[each].add(name)
        ready = [name for name, count in missing.items() if not count]
        while ready:
            name = ready.pop()
            size = self.size(self.rules[name])
            if size is None:
                continue
            self._sizes[name] = size
            for user in users[name]:
                missing[user] -= 1
                if not missing[user]:
                    ready.append(user)


def walk(node: Node) -> Iterator[Node]:
    """A node and all in it."""
    waiting = [node]
    while waiting:
        here = waiting.pop()
        yield here
        waiting += children(here)


def _from_below(rules: dict[str, Node]) -> list[str]:
    """Names in the order in which a walk through the rules leaves them."""
    found: dict[str, None] = {}
    entered: set[str] = set()
    for start, rule in rules.items():
        stack = [] if start in entered else [(start, _names_in(rule))]
        entered.add(start)
        while stack:
            name, rest = stack[-1]
            following = next((each for each in rest if each not in entered), None)
            if following is None:
                found[name] = None
                stack.pop()
            else:
                entered.add(following)
                stack.append((following, _names_in(rules[following])))
    return list(found)


def _names_in(rule: Node) -> Iterator[str]:
    return (node.name for node in walk(rule) if type(node) is Ref)


def _iterate_until_stable(step: Callable[[], bool]) -> None:
    while step():
        pass


class Alphabet:
    """The classes of characters that these sets of a grammar tell apart."""

    def __init__(self, sets: Iterable[Ranges]) -> None:
        self._starts = sorted({0, *(edge for each in sets for first, last in each for edge in (first, last + 1))})

    def bits(self, ranges: Ranges) -> int:
        """The classes in a set that is one of those, or a union of them."""
        found = 0
        for first, last in ranges:
            start, end = bisect_left(self._starts, first), bisect_left(self._starts, min(last, LAST) + 1)
            found |= (1 << end) - (1 << start)
        return found
