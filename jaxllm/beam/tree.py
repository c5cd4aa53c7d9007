"""What a beam search has tried, for people who want to see it: off unless it is asked for, and bounded."""

from typing import TYPE_CHECKING, Final, Literal

from jaxllm.requests.outputs import BeamTree

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jaxllm.beam.policy import Hypothesis, Link

MOST_TREE_TOKENS: Final = 4096
"""Tokens of a tree; those of later steps are left out."""


class TreeRecorder:
    """Writes down the tokens that beams went on with or ended with, in the order of the steps."""

    def __init__(self) -> None:
        self._index: dict[Link, int] = {}
        self._tree = BeamTree([], [], [], [], [])
        self._is_whole = True

    def add(self, link: "Link", total: float) -> None:
        """A beam goes on with this token, or ends with it."""
        before = -1 if link.before is None else self._index.get(link.before)
        if before is None or len(self._index) == MOST_TREE_TOKENS:
            self._is_whole = False
            return
        self._index[link] = len(self._index)
        tree = self._tree
        tree.parents.append(before)
        tree.token_ids.append(link.token_id)
        tree.logprobs.append(float(link.beside.logprobs[link.place]))
        tree.totals.append(total)

    def end(self, link: "Link", reason: Literal["stop", "length"], score: float) -> None:
        """A hypothesis is complete with a token that was added."""
        if link in self._index:
            self._tree.ends.append((self._index[link], reason, score))

    def tree(self, best: "Iterable[Hypothesis]") -> BeamTree:
        """All of it, with the places of the hypotheses that are returned."""
        tree = self._tree
        places = [self._index.get(each.last, -1) for each in best]
        return BeamTree(
            tree.parents, tree.token_ids, tree.logprobs, tree.totals, tree.ends, places, is_whole=self._is_whole
        )
