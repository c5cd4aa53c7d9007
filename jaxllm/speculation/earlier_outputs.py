"""Drafts from what an owner's earlier requests were answered, alongside each request's own text.

Agents and pipelines ask for much the same again and again (Oliaro et al., SuffixDecoding, arXiv 2411.04975). What one
owner was answered never becomes a draft for another: how long a step takes would tell of it.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from jaxllm.requests.request import Request
from jaxllm.scheduler.table import RequestTable
from jaxllm.speculation.drafter import with_rows
from jaxllm.speculation.ngram import NgramDrafter
from jaxllm.speculation.text_index import HEADS, append, longest_match

Int32Array = npt.NDArray[np.int32]

MOST_OWNERS = 64
"""Owners whose outputs are kept; those who were answered longest ago make way."""


class EarlierOutputsDrafter:
    """Goes on as the longest match does, in the request's own text or in earlier outputs of its owner.

    Requests of one owner with different cache salts are kept apart, too.
    """

    def __init__(self, own_text: NgramDrafter, max_tokens: int, longest: int, shortest: int) -> None:
        """Of each owner the last `max_tokens` tokens are kept. A match has `shortest` to `longest` tokens."""
        self._own_text, self._max_tokens = own_text, max_tokens
        self._longest, self._shortest = longest, shortest
        self._owners: OrderedDict[Hashable, _Outputs] = OrderedDict()
        # Compile now, which takes a second, and not in a step.
        nothing = _Outputs(4)
        nothing.add(np.zeros(2, np.int32), shortest)
        nothing.find(np.zeros(2 * longest, np.int32), 2 * longest, shortest, longest)

    @property
    def num_owners(self) -> int:
        """Owners whose outputs are kept."""
        return len(self._owners)

    def propose(self, table: RequestTable, slots: Int32Array, limits: Int32Array) -> tuple[Int32Array, Int32Array]:
        """See `Drafter.propose`."""
        counts, ids, matched = self._own_text.matched(table, slots, limits)
        if not self._owners:
            return counts, ids
        found: dict[int, Int32Array] = {}
        for row, slot in enumerate(slots.tolist()):
            request = table.requests[slot]
            outputs = None if request is None else self._owners.get(_key(request))
            length = int(table.num_tokens[slot])
            if outputs is not None and length >= self._shortest and matched[row] < self._longest:
                place, count = outputs.find(table.token_ids[slot], length, self._shortest, self._longest)
                if count > matched[row]:
                    found[row] = outputs.following(place, int(limits[row]))
        return with_rows(counts, ids, found)

    def forget(self, request: Request) -> None:
        """A request has ended: keep its output."""
        output = request.output_token_ids[: self._max_tokens // 2]
        if len(output) <= self._shortest:
            return
        key = _key(request)
        outputs = self._owners.pop(key, None) or _Outputs(self._max_tokens)
        self._owners[key] = outputs
        if len(self._owners) > MOST_OWNERS:
            self._owners.popitem(last=False)
        outputs.add(np.array(output, np.int32), self._shortest)


def _key(request: Request) -> Hashable:
    return request.owner, request.cache_salt


@dataclass
class _Outputs:
    """The last outputs of an owner, one after the other in a ring."""

    size: int
    next: int = 0
    tokens: Int32Array = field(init=False)
    links: Int32Array = field(init=False)
    chains: Int32Array = field(init=False)

    def __post_init__(self) -> None:
        self.tokens, self.links = np.full(self.size, -1, np.int32), np.full(self.size, -1, np.int32)
        self.chains = np.full(HEADS, -1, np.int32)

    def add(self, output: Int32Array, shortest: int) -> None:
        """Keep an output."""
        self.next = append(self.tokens, self.chains, self.links, self.next, output, shortest)

    def find(self, tokens: Int32Array, length: int, shortest: int, longest: int) -> tuple[int, int]:
        """The place after the longest match of the last of `tokens` [length], and its length."""
        place, count = longest_match(self.tokens, self.size, self.chains, self.links, tokens, length, shortest, longest)
        return int(place), int(count)

    def following(self, place: int, limit: int) -> Int32Array:
        """Up to `limit` tokens from a place on, as far as that output goes."""
        some = self.tokens[place : place + limit]
        ends = np.flatnonzero(some < 0)
        return some[: int(ends[0])] if len(ends) else some.copy()
