"""Adapters of an engine by name: what is loaded, replaced and removed while requests are on their way."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from jaxllm.adapters.adapters import Adapters, Ready
from jaxllm.adapters.store import HostAdapter
from jaxllm.errors import RequestError
from jaxllm.requests.lora_request import LoRARequest

SECONDS = 10.0


@dataclass(eq=False)
class Asking:
    """A request of an engine."""

    lora_request: LoRARequest | None


@dataclass
class Host:
    """Adapters that are files of one number, and what the slots have."""

    folder: Path
    adapters: Adapters[Asking] = field(init=False)
    slots: dict[int, int] = field(default_factory=dict)
    reads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.adapters = Adapters(self.read, self.write, num_slots=1, capacity=1)

    def read(self, lora: LoRARequest) -> HostAdapter:
        path = Path(lora.lora_path)
        self.reads.append(path.name)
        if not path.exists():
            raise RequestError(f"{path.name} is not there", "lora_request")
        return HostAdapter(b"", ((np.array(int(path.read_text())),),))

    def write(self, slot: int, stages: Sequence[Sequence[np.ndarray]]) -> None:
        self.slots[slot] = int(stages[0][0])

    def lora(self, name: str, number: int = 1, content: int | None = None) -> LoRARequest:
        path = self.folder / name
        if content is not None:
            path.write_text(str(content))
        return LoRARequest(name, number, str(path))

    def load(self, lora: LoRARequest) -> None:
        until = time.monotonic() + SECONDS
        is_here = self.adapters.load(lora)
        while not is_here:
            assert time.monotonic() < until
            time.sleep(0.001)
            is_here = self.adapters.load(lora, again=True)

    def answer(self, lora: LoRARequest) -> int:
        """What is in the slot of a request that begins now."""
        asking = Asking(lora)
        self.adapters.begin(asking)
        (found,) = self.ready()
        assert found.request is asking
        assert found.error is None, found.error
        self.adapters.forget(asking)
        return self.slots[found.slot]

    def ready(self) -> list[Ready[Asking]]:
        until = time.monotonic() + SECONDS
        while not (found := self.adapters.ready()):
            assert time.monotonic() < until
            self.adapters.wait()
        return found


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    host.adapters.check_integrity(())
    host.adapters.close()


def test_a_request_that_comes_after_its_adapter_was_removed_does_not_bring_it_back(host: Host) -> None:
    """Its API server had looked the name up before. What is loaded under the name next is read for itself."""
    old = host.lora("sql", 1, content=10)
    host.load(old)
    assert host.adapters.remove("sql")
    assert host.answer(old) == 10
    new = host.lora("sql", 2, content=20)
    host.load(new)
    assert host.answer(new) == 20
    # Another late one does not take the name from the new one, which is not read again for that.
    assert host.answer(old) == 20, "the folder is what it is now"
    reads = len(host.reads)
    host.load(new)
    assert host.adapters.pin("sql")
    assert len(host.reads) <= reads + 1
    assert host.adapters.remove("sql")
    assert not host.adapters.remove("sql")


def test_what_is_loaded_again_is_read_again(host: Host) -> None:
    lora = host.lora("sql", content=1)
    for content in range(20):
        host.lora("sql", content=content)
        host.load(lora)
        assert host.answer(lora) == content
        assert host.adapters.remove("sql")
    assert len(host.reads) == 20


def test_two_that_are_loaded_at_a_time_both_come_to_an_end(host: Host) -> None:
    """Though the host has memory for one: the first is gone when its caller asks for the second time."""
    waiting = [host.lora(name, content=index) for index, name in enumerate(("one", "two"))]
    one, two = waiting
    for lora in waiting:
        host.adapters.load(lora)
        for _ in range(3):  # The engine's steps.
            host.adapters.wait()
            assert host.adapters.ready() == []
    until = time.monotonic() + SECONDS
    while waiting:
        assert time.monotonic() < until, "a caller waits for ever"
        waiting = [lora for lora in waiting if not host.adapters.load(lora, again=True)]
    assert (host.answer(one), host.answer(two)) == (0, 1)


def test_a_request_that_ends_before_it_is_told_of_an_error_is_not_told(host: Host) -> None:
    asking = Asking(host.lora("nothing"))
    host.adapters.begin(asking)
    other = host.lora("one", content=1)
    host.load(other)  # Takes over what was read, so that the error is known, too.
    assert host.reads == ["nothing", "one"]
    host.adapters.forget(asking)
    assert host.adapters.ready() == []
    # Whoever asks later has it read again.
    assert host.answer(host.lora("nothing", content=7)) == 7


def test_an_error_is_told_to_whoever_loads_and_is_not_kept(host: Host) -> None:
    for _ in range(2):
        with pytest.raises(RequestError, match="nothing is not there"):
            host.load(host.lora("nothing"))
    lora = host.lora("one", content=1)
    host.adapters.load(lora)
    assert host.adapters.remove("one")
    with pytest.raises(RequestError, match="replaced or removed while it was read"):
        host.adapters.load(lora, again=True)
