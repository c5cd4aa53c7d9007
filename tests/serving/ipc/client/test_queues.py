"""Messages reach the engine in order and within the credit, and only those taken back are lost."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jaxllm.pooling.params import PoolingParams
from jaxllm.requests.owners import NOBODY
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.ipc.client.queues import SendQueue, request_ids
from jaxllm.serving.ipc.messages import Abort, Add, AddedSequence, Finish, Pool, Reconcile, ToEngine

CREDIT = 4
PROMPT = np.array([1], np.int32)


def add(*names: str) -> Add:
    return Add(PROMPT, [AddedSequence(name, SamplingParams()) for name in names], 0, None, (), NOBODY)


class Engine:
    """The requests that an engine has after the messages."""

    def __init__(self) -> None:
        self.has: set[str] = set()
        self.known_once: set[str] = set()
        self.reconciled: list[int] = []

    def obey(self, message: ToEngine) -> None:
        match message:
            case Add() | Pool():
                new = set(request_ids(message))
                assert new, "an empty message"
                assert not new & self.has, "added twice"
                self.has |= new
            case Abort(names):
                self.has.difference_update(names)
            case Reconcile(number, names):
                assert set(names) <= self.known_once
                self.reconciled.append(number)


class SendQueueMachine(RuleBasedStateMachine):
    """A client that adds, aborts and reconciles, before an engine that takes messages now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.on_the_way: list[ToEngine] = []
        self.sent = self.taken = self.numbers = self.asked = 0
        self.queue = SendQueue(self._transmit, CREDIT)
        self.engine = Engine()
        self.wanted: set[str] = set()
        self.is_open = False

    def _transmit(self, message: ToEngine) -> None:
        assert self.is_open
        self.on_the_way.append(message)
        self.sent += 1

    def _name(self) -> str:
        self.numbers += 1
        return f"r{self.numbers}"

    @precondition(lambda self: not self.is_open)
    @rule()
    def open(self) -> None:
        self.is_open = True
        self.queue.open()

    @rule(count=st.integers(1, 3))
    def add(self, count: int) -> None:
        names = [self._name() for _ in range(count)]
        self.wanted.update(names)
        self.engine.known_once.update(names)
        self.queue.put(add(*names))

    @rule()
    def pool(self) -> None:
        name = self._name()
        self.wanted.add(name)
        self.engine.known_once.add(name)
        self.queue.put(Pool(name, PROMPT, PoolingParams(), 0, None, NOBODY))

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        names = data.draw(st.lists(st.sampled_from(sorted(self.wanted)), unique=True, min_size=1, max_size=3))
        self.wanted.difference_update(names)
        self.queue.put(Abort(names))

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def again_under_the_same_name(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.wanted)))
        self.queue.put(Abort([name]))
        self.queue.put(add(name))

    @rule()
    def reconcile(self) -> None:
        self.asked += 1
        self.queue.put(Reconcile(self.asked, sorted(self.wanted)))

    @rule(count=st.integers(1, 2 * CREDIT))
    def engine_takes(self, count: int) -> None:
        for _ in range(min(count, len(self.on_the_way))):
            self.taken += 1
            self.engine.obey(self.on_the_way.pop(0))
        self.queue.grant(self.taken)

    @rule()
    def connection_ends(self) -> None:
        """Requests that were never sent go to another engine; the rest fails."""
        left = self.queue.close()
        names = {name for message in left for name in request_ids(message)}
        assert names <= self.wanted
        self.queue.put(add("too late"))
        self.wanted = names
        known = self.engine.known_once
        self.on_the_way, self.sent, self.taken, self.asked, self.is_open = [], 0, 0, 0, False
        self.engine = Engine()
        self.engine.known_once = known
        self.queue = SendQueue(self._transmit, CREDIT)
        for message in left:
            self.queue.put(message)

    @invariant()
    def never_more_on_the_way_than_credit(self) -> None:
        assert self.sent - self.taken == len(self.on_the_way) <= CREDIT

    @invariant()
    def what_waits_is_bounded_by_the_requests(self) -> None:
        # Besides requests that wait there is at most one abort, and what was asked.
        assert len(self.queue) <= len(self.wanted) + 1 + self.asked

    def teardown(self) -> None:
        if not self.is_open:
            self.open()
        while self.on_the_way:
            self.engine_takes(2 * CREDIT)
        assert len(self.queue) == 0
        assert self.engine.has == self.wanted
        assert self.engine.reconciled == list(range(1, self.asked + 1))


SendQueueMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestSendQueue = SendQueueMachine.TestCase


def test_of_several_sequences_only_the_aborted_are_taken_back() -> None:
    sent: list[ToEngine] = []
    queue = SendQueue(sent.append)
    queue.put(add("a", "b", "c"))
    queue.put(Finish([("x", "stop")]))
    queue.put(Abort(["b", "y"]))
    queue.put(Abort(["z"]))
    queue.open()
    assert [type(message) for message in sent] == [Add, Finish, Abort]
    assert request_ids(sent[0]) == ["a", "c"]
    assert sent[2] == Abort(["y", "z"])
