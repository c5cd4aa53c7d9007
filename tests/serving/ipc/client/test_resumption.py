"""Which requests go on after the end of their engine, and which are to blame. No process is started."""

from types import SimpleNamespace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jaxllm.errors import EngineError
from jaxllm.requests.owners import NOBODY
from jaxllm.serving.ipc.client.in_flight import Admission, InFlight
from jaxllm.serving.ipc.client.resumption import Crashes, Resumption


class Reader:
    """Of a request, which has brought so many tokens."""

    def __init__(self, name: str, *, kills: bool = False) -> None:
        child = SimpleNamespace(owner=NOBODY)
        self.request = SimpleNamespace(request_id=name, children=[child], reservation=None)
        self.kills, self.tokens = kills, 0

    def __repr__(self) -> str:
        return self.request.request_id


class Client:
    """A client and its engines, one after another."""

    def __init__(self, most: int = 2) -> None:
        self.in_flight = InFlight(Admission())
        self.crashes = Crashes(most)
        self.resumption = Resumption(self.in_flight, self.crashes, self.progress)
        self.readers: dict[str, Reader] = {}
        self.engine: list[Reader] = []  # what it has
        self.blamed: list[Reader] = []

    def progress(self, name: str) -> tuple[int, int]:
        return 1, self.readers[name].tokens

    def submit(self, reader: Reader) -> None:
        name = reader.request.request_id
        self.readers[name] = reader
        self.in_flight.add(reader.request, reader)
        if self.resumption.is_trying:
            self.resumption.hold(reader)
        else:
            self.engine.append(reader)

    def end(self, reader: Reader) -> None:
        name = reader.request.request_id
        self.in_flight.remove(name)
        del self.readers[name]
        self.engine = [each for each in self.engine if each is not reader]
        self.advance()

    def crash(self) -> None:
        had, self.engine = self.engine, []
        found = self.resumption.sort([each.request.request_id for each in had])
        assert not set(found.again) & set(found.guilty)
        for reader in found.guilty:
            self.blamed.append(reader)
            self.end(reader)
        self.engine += found.again
        self.advance()

    def advance(self) -> None:
        reader = self.resumption.next() if self.resumption.is_trying else None
        if reader is not None:
            self.engine.append(reader)

    def step(self) -> None:
        """Each request brings a token, unless the engine ends with one that kills it."""
        if any(reader.kills for reader in self.engine):
            self.crash()
            return
        for reader in self.engine:
            reader.tokens += 1
        self.advance()


def test_one_that_kills_is_found_among_those_that_do_not() -> None:
    client = Client()
    for number in range(10):
        client.submit(Reader(str(number), kills=number == 6))
    for _ in range(15):
        client.step()
    assert [str(each) for each in client.blamed] == ["6"]
    assert len(client.engine) == 9
    assert all(reader.tokens for reader in client.engine)


def test_one_that_is_alone_is_to_blame_the_second_time() -> None:
    client = Client()
    client.submit(Reader("a", kills=True))
    client.step()
    assert not client.blamed
    client.step()
    assert [str(each) for each in client.blamed] == ["a"]


def test_whoever_brings_news_is_free_again() -> None:
    client = Client()
    client.submit(Reader("a"))
    for _ in range(5):
        client.crash()
        client.step()
    assert not client.blamed
    assert client.engine[0].tokens == 5


def test_without_any_chance_all_get_the_reason() -> None:
    client = Client(most=0)
    readers = [Reader("a"), Reader("b")]
    for reader in readers:
        client.submit(reader)
    client.crash()
    assert client.blamed == readers


def test_the_error_names_the_option_and_the_reason() -> None:
    crashes, reader = Crashes(2), Reader("a")
    assert [crashes.count(reader, (1, 0)) for _ in range(2)] == [1, 2]
    message = str(crashes.error(reader, EngineError("killed by SIGKILL")))
    assert "2 times in a row" in message
    assert "max_request_crashes" in message
    assert message.endswith("killed by SIGKILL")


class Machine(RuleBasedStateMachine):
    """Requests come, bring tokens, end, and some kill their engine; engines end for other reasons as well.

    Whatever happens, nobody waits for ever, and nobody is blamed who always brings news before an engine ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self.client = Client()
        self.numbers = 0

    @rule(kills=st.sampled_from([False, False, False, True]))
    def submit(self, kills: bool) -> None:
        self.numbers += 1
        self.client.submit(Reader(f"r{self.numbers}", kills=kills))

    @rule()
    def step(self) -> None:
        self.client.step()

    @precondition(lambda self: self.client.readers)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        names = sorted(self.client.readers)
        self.client.end(self.client.readers[data.draw(st.sampled_from(names))])

    @rule()
    def outer_crash(self) -> None:
        """For a reason outside, unless there is no news of some."""
        client = self.client
        if not any(client.crashes.is_silent(each, client.progress(str(each))) for each in client.engine):
            client.crash()

    @invariant()
    def nobody_is_forgotten(self) -> None:
        """What no engine has waits for a trial that is going on."""
        waiting = set(self.client.readers.values()) - set(self.client.engine)
        assert {each.request.request_id for each in waiting} == self.client.resumption.held()
        assert not waiting or self.client.resumption.is_trying
        assert len(self.client.engine) == len(set(self.client.engine))

    @invariant()
    def only_those_that_kill_are_to_blame(self) -> None:
        assert all(reader.kills for reader in self.client.blamed)

    def teardown(self) -> None:
        for _ in range(5 * self.numbers + 5):
            self.client.step()
        assert not any(reader.kills for reader in self.client.readers.values())
        assert set(self.client.engine) == set(self.client.readers.values())


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_reader_that_is_gone_is_forgotten() -> None:
    crashes, reader = Crashes(2), Reader("a")
    crashes.count(reader, (1, 0))
    assert reader in crashes
    del reader
    assert not list(crashes._known)


@pytest.mark.parametrize("most", [1, 3])
def test_other_limits(most: int) -> None:
    client = Client(most)
    client.submit(Reader("a", kills=True))
    for _ in range(most):
        assert not client.blamed
        client.step()
    assert len(client.blamed) == 1
