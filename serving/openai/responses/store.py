"""Responses that are kept, to be retrieved and continued: bounded, in memory, the least recently used go first."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from jaxllm.requests.owners import Owner
from jaxllm.serving.openai.protocol.response_answers import ModelResponse
from jaxllm.serving.openai.protocol.response_items import Item
from jaxllm.serving.openai.protocol.responses import ResponsesRequest


@dataclass(eq=False)
class Turn:
    """What one response has added to its conversation: its input and its output, and the turn before.

    Conversations that continue the same response share its turn, which lives as long as one of them.
    """

    before: "Turn | None"
    given: list[Item]
    made: list[Item] = field(default_factory=list)
    num_bytes: int = 0
    num_users: int = 0
    """Stored responses whose conversation it is part of."""
    name: str = ""
    """The id of the response that made it, once that is stored."""

    def history(self) -> "list[Turn]":
        """All turns of the conversation, the first one first."""
        turns: list[Turn] = []
        turn: Turn | None = self
        while turn is not None:
            turns.append(turn)
            turn = turn.before
        return turns[::-1]

    def items(self) -> list[Item]:
        """All items of the conversation."""
        return [item for turn in self.history() for item in (*turn.given, *turn.made)]


class EventLog:
    """Events of a stream that can be sent again; readers may come at any time."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.ended = False
        self._changed = asyncio.Event()

    def add(self, events: list[bytes]) -> None:
        """Add events; each has the next number."""
        self.events += events
        self._wake()

    def end(self) -> None:
        """Nothing more comes."""
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, beyond: int) -> None:
        """Wait until there are more than `beyond` events, or the end."""
        while len(self.events) <= beyond and not self.ended:
            await self._changed.wait()


class Asked(msgspec.Struct, kw_only=True):
    """What a response in the background is made from: another server can make it again."""

    body: ResponsesRequest
    """With a seed, so that the same tokens come."""
    owner: Owner
    request_id: str


class Progress(msgspec.Struct, kw_only=True):
    """How much of the model's reply is in the events of a response."""

    num_tokens: int = 0
    num_characters: int = 0
    digest: str = ""
    """SHA-256 of these characters in UTF-8."""


@dataclass(eq=False)
class Stored:
    """A response and its conversation; `log` is there if its stream is kept."""

    response: ModelResponse
    turn: Turn
    owner: str = ""
    """Whose it is: for everybody else it does not exist."""
    log: EventLog | None = None
    cancel: Callable[[], None] | None = None
    """Ends it while it runs; for responses in the background."""
    num_bytes: int = 0
    """Size of response and events."""
    asked: Asked | None = None
    """Of a response in the background that another server may go on with."""
    progress: Progress = field(default_factory=Progress)
    """Of a response whose stream is kept."""
    num_events: int = 0
    """Of its stream, those that are being written included."""

    @property
    def runs(self) -> bool:
        """Whether it is still being made."""
        return self.response.status in ("queued", "in_progress")


class Keeper(Protocol):
    """Writes down what a store has: `database.ResponseDatabase`."""

    def keep(self, stored: Stored, turns: Sequence[Turn]) -> None:
        """A response and the turns that were not there; or they have changed."""

    def forget(self, stored: Stored, turns: Sequence[Turn]) -> None:
        """A response is no more, and these turns with it."""

    def add_events(self, stored: Stored, first: int, events: Sequence[bytes], then: Callable[[], None]) -> None:
        """Events of a response come after the `first` ones; `then` is to be called once they are written down."""


class ResponseStore:
    """Keeps at most `max_responses`, of together `max_bytes` bytes of JSON; what still runs is kept in any case.

    A turn that several responses share counts once. Responses and items belong to their owner: for others they do not
    exist, not even by an id that a client has chosen. When there are too many, those of the owner with most go.
    """

    def __init__(
        self, max_responses: int, max_bytes: int, keeper: Keeper | None = None, known: Iterable[Stored] = ()
    ) -> None:
        """`known`: what `keeper` has from before."""
        self.max_responses = max_responses
        self.max_bytes = max_bytes
        self._keeper: Keeper | None = None
        self.num_bytes = 0
        self._stored: OrderedDict[tuple[str, str], Stored] = OrderedDict()  # by owner and id
        self._items: dict[tuple[str, str], Item] = {}
        self._counts: Counter[str] = Counter()  # by owner
        self._bytes: Counter[str] = Counter()
        for stored in known:
            self._add(stored)
        self._keeper = keeper
        self._make_room()

    @property
    def enabled(self) -> bool:
        """Whether it keeps anything."""
        return self.max_responses > 0

    def __len__(self) -> int:
        return len(self._stored)

    def __iter__(self) -> Iterator[str]:
        return (response_id for _, response_id in self._stored)

    @property
    def running(self) -> list[Stored]:
        """Those that are still being made."""
        return [stored for stored in self._stored.values() if stored.runs]

    def stop_keeping(self) -> None:
        """What happens from now on is not written down."""
        self._keeper = None

    def put(self, stored: Stored) -> None:
        """Keep a response. Call it again when the response has changed."""
        if not stored.runs:
            stored.asked = None  # It may be as large as a body, and nobody needs it any more.
        known = self._stored.get((stored.owner, stored.response.id))
        if known is not None:
            self._remove(known)
        turns = self._add(stored)
        if self._keeper is not None:
            self._keeper.keep(stored, turns)
        self._make_room()

    def _make_room(self) -> None:
        while (many := len(self._stored) > self.max_responses) or self.num_bytes > self.max_bytes:
            shares = self._counts if many else self._bytes
            ended = [each for each in self._stored.values() if not each.runs]
            if not ended:
                break
            # `max` takes the first of equals: the least recently used.
            self.delete(max(ended, key=lambda each: shares[each.owner]))

    def get(self, owner: str, response_id: str) -> Stored | None:
        """A response of this owner, which so counts as used; None if it is not there, or not any more."""
        stored = self._stored.get((owner, response_id))
        if stored is not None:
            self._stored.move_to_end((owner, response_id))
        return stored

    def item(self, owner: str, item_id: str) -> Item | None:
        """An item of any conversation of this owner that is kept."""
        return self._items.get((owner, item_id))

    def tell(self, stored: Stored, events: list[bytes], *, last: bool = False) -> None:
        """Add events to the log of a response that has one, for its readers once they are written down.

        So a reader who comes back to another server has seen nothing that this one does not know.
        """
        log = stored.log
        if log is None:
            return
        first = stored.num_events
        stored.num_events += len(events)

        def show() -> None:
            if events:
                log.add(events)
            if last:
                log.end()

        if self._keeper is None:
            show()
        else:
            self._keeper.add_events(stored, first, events, show)

    def delete(self, stored: Stored) -> None:
        """Forget a response. Its items stay in the conversations that continue it."""
        turns = self._remove(stored)
        if self._keeper is not None:
            self._keeper.forget(stored, turns)

    def _add(self, stored: Stored) -> list[Turn]:
        """The result is the turns that no other response has."""
        stored.turn.name = stored.turn.name or stored.response.id
        own = []
        stored.num_bytes = len(msgspec.json.encode(stored.response))
        if stored.log is not None:
            stored.num_bytes += sum(map(len, stored.log.events))
        self._count_bytes(stored.owner, stored.num_bytes)
        self._stored[stored.owner, stored.response.id] = stored
        self._counts[stored.owner] += 1
        for turn in stored.turn.history():
            if turn.num_users == 0:
                own.append(turn)
                items = turn.given + turn.made
                turn.num_bytes = len(msgspec.json.encode(items))
                self._count_bytes(stored.owner, turn.num_bytes)
                self._items.update({(stored.owner, item.id): item for item in items if item.id})
            turn.num_users += 1
        return own

    def _remove(self, stored: Stored) -> list[Turn]:
        """The result is the turns that no response has any more."""
        dead = []
        del self._stored[stored.owner, stored.response.id]
        self._counts[stored.owner] -= 1
        self._count_bytes(stored.owner, -stored.num_bytes)
        for turn in stored.turn.history():
            turn.num_users -= 1
            if turn.num_users == 0:
                dead.append(turn)
                self._count_bytes(stored.owner, -turn.num_bytes)
                for item in turn.given + turn.made:
                    key = (stored.owner, item.id or "")
                    if self._items.get(key) is item:
                        del self._items[key]
        if not self._counts[stored.owner]:
            del self._counts[stored.owner], self._bytes[stored.owner]
        return dead

    def _count_bytes(self, owner: str, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self._bytes[owner] += num_bytes
