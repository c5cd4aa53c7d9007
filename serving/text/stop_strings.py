"""Stop strings in text as it is generated: never a part of one is shown."""

from collections.abc import Sequence


class StopAutomaton:
    """Stop strings as an automaton (Aho and Corasick, 1975): a character costs the same, however many there are.

    State 0 is the beginning; every other state stands for a beginning of a stop string, the longest that the text ends
    with. Making it takes about a microsecond per character; the sequences of a request share it.
    """

    __slots__ = ("_back", "_next", "complete", "length")

    def __init__(self, stops: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self.length: list[int] = [0]
        """Characters of each state's text."""
        self.complete: list[str | None] = [None]
        """The longest stop string that each state's text ends with."""
        for stop in stops:
            state = 0
            for character in stop:
                following = self._next[state].get(character)
                if following is None:
                    following = self._next[state][character] = len(self._next)
                    self._next.append({})
                    self.length.append(self.length[state] + 1)
                    self.complete.append(None)
                state = following
            self.complete[state] = stop
        self._back = [0] * len(self._next)
        states = list(self._next[0].values())
        for state in states:
            if self.complete[state] is None:
                self.complete[state] = self.complete[self._back[state]]
            for character, following in self._next[state].items():
                self._back[following] = self.after(self._back[state], character)
                states.append(following)

    def after(self, state: int, character: str) -> int:
        """The state after one more character."""
        while state and character not in self._next[state]:
            state = self._back[state]
        return self._next[state].get(character, 0)

    def beginning(self, state: int) -> int:
        """The longest beginning that `state` ends with and that is no whole stop string."""
        while state and not self._next[state]:
            state = self._back[state]
        return state


class StopStrings:
    """Lets text through until one of several strings is complete.

    The string that is complete first wins; of several complete at the same character, the longest. The outcome does
    not depend on how the text is cut into pieces. Text that could still become a stop string is held back.
    """

    __slots__ = ("_automaton", "_held", "_include", "_state", "matched")

    def __init__(self, automaton: StopAutomaton, *, include: bool = False) -> None:
        """`include` lets the stop string itself through."""
        self._automaton = automaton
        self._include = include
        self._state = 0
        self._held = ""
        self.matched: str | None = None

    def push(self, piece: str, *, check: bool = True) -> str:
        """Take more text; return what may be shown. Afterwards `matched` says whether a stop string is complete.

        With `check` False, a stop string that is complete within this piece does not count.
        """
        state, after, complete = self._state, self._automaton.after, self._automaton.complete
        text = self._held + piece
        for place, character in enumerate(piece, start=len(self._held) + 1):
            state = after(state, character)
            stop = complete[state]
            if check and stop is not None:
                self.matched, self._held, self._state = stop, "", 0
                return text[: place if self._include else place - len(stop)]
        self._state = self._automaton.beginning(state)
        keep = len(text) - self._automaton.length[self._state]
        self._held = text[keep:]
        return text[:keep]

    def flush(self) -> str:
        """Text that was held back and did not become a stop string."""
        held, self._held, self._state = self._held, "", 0
        return held
