"""Several clients of one engine: each gets the news of its own requests, whatever the others do."""

from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

import numpy as np
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from jaxllm.config import EngineConfig
from jaxllm.engine.stats import StepStats
from jaxllm.errors import EngineError
from jaxllm.requests.outputs import EngineOutput
from jaxllm.requests.owners import NOBODY
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.ipc.engine_process.clients import Client, Clients, InputQueue
from jaxllm.serving.ipc.engine_process.loop import run
from jaxllm.serving.ipc.messages import (
    Abort,
    Add,
    AddedSequence,
    AttachClient,
    Configure,
    DetachClient,
    Failed,
    Finish,
    FromEngine,
    Hello,
    Loading,
    Outputs,
    Ready,
)
from jaxllm.serving.ipc.wire import FrameDecoder, FrameEncoder, LostMessageError, NumberedDecoder, NumberedEncoder
from tests.serving.conftest import engine_info

COUNT = 3


def add(*names: str) -> Add:
    sequences = [AddedSequence(name, SamplingParams()) for name in names]
    return Add(np.array([1], np.int32), sequences, 0, None, (), NOBODY)


def news(client: Client) -> tuple[list[str], bool]:
    """Requests that a client is told about, and whether it is told about a step."""
    client.output_queue.put_outputs([], None)
    client.output_queue.close()
    outputs: list[str] = []
    told = False
    while (message := client.output_queue.take()) is not None:
        if isinstance(message, Outputs):
            outputs += [f"{output.request_id}:{token}" for output in message.outputs for token in output.token_ids]
            told |= message.stats is not None
    return outputs, told


class Unconnected(Client):
    """A client without sockets: what is put into its output_queue stays there."""

    def __init__(self, folder: str = "nowhere") -> None:
        super().__init__(folder, SimpleQueue())

    def close(self) -> None:
        """There is nothing to close."""


@given(
    events=st.lists(
        st.tuples(st.integers(0, COUNT - 1), st.sampled_from(("add", "abort", "finish", "end", "step"))), max_size=40
    )
)
def test_each_hears_of_its_own_requests(events: list[tuple[int, str]]) -> None:
    made = [Unconnected() for _ in range(COUNT)]
    clients = Clients(made[0], SimpleQueue(), engine_info())
    for client in made[1:]:
        clients.include(client)
    running: dict[str, int] = {}
    want: list[list[str]] = [[] for _ in made]
    for number, (index, what) in enumerate(events):
        own = [name for name, owner in running.items() if owner == index]
        if what == "add":
            running[f"r{number}"] = index
            clients.take(made[index], add(f"r{number}"))
        elif what == "step":
            for name, owner in running.items():
                want[owner].append(f"{name}:{number}")
            clients.put_outputs([EngineOutput(name, [number]) for name in running], StepStats(num_steps=1))
        elif own:
            name = own[0]
            del running[name]
            if what == "abort":
                clients.take(made[index], Abort([name]))
            elif what == "finish":
                clients.take(made[index], Finish([(name, "stop")]))
            else:
                want[index].append(f"{name}:{number}")
                clients.put_outputs([EngineOutput(name, [number], finish_reason="stop")], None)
    stepped = any(what == "step" for _, what in events)
    for client, expected in zip(made, want, strict=True):
        outputs, told = news(client)
        assert sorted(outputs) == sorted(expected)
        assert told == stepped


def test_what_nobody_has_asked_for_goes_to_the_first() -> None:
    first, second = Unconnected(), Unconnected()
    clients = Clients(first, SimpleQueue(), engine_info())
    clients.include(second)
    clients.take(second, add("a"))
    clients.take(second, Abort(["a"]))
    clients.put_outputs([EngineOutput("a", [1])], None)
    assert news(second) == ([], False)
    assert news(first) == (["a:1"], False)


def test_a_client_that_is_gone_leaves_its_requests() -> None:
    first, second, third = Unconnected(), Unconnected("second"), Unconnected("third")
    clients = Clients(first, SimpleQueue(), engine_info())
    clients.include(second)
    clients.include(third)
    for name, client in (("a", first), ("b", second), ("c", second), ("d", third)):
        assert clients.take(client, add(name)) == []
    assert clients.take(first, DetachClient("unknown")) == []
    assert sorted(clients.take(first, DetachClient("second"))) == ["b", "c"]
    assert clients.take(first, DetachClient("second")) == []
    # What still comes of them is nobody's, and the others notice nothing.
    clients.put_outputs([EngineOutput(name, [1]) for name in "abd"], None)
    assert news(second) == ([], False)
    assert news(third) == (["d:1"], False)


def test_requests_that_arrive_after_their_client_has_gone_are_ignored() -> None:
    """Each client has a thread that queues its messages; that of a dead client may come last."""

    class OneStep:
        """Has what is added compute one token, and asks for nothing more."""

        def __init__(self) -> None:
            self.unfinished: list[str] = []

        def add_request(self, request: Request) -> None:
            self.unfinished.append(request.request_id)

        def abort_request(self, names: list[str]) -> None:
            self.unfinished = [name for name in self.unfinished if name not in names]

        def has_unfinished_requests(self) -> bool:
            return bool(self.unfinished)

        def step(self) -> list[EngineOutput]:
            done, self.unfinished = self.unfinished, []
            input_queue.put(None)
            return [EngineOutput(name, [1], finish_reason="length") for name in done]

        def stats(self) -> StepStats:
            return StepStats(num_steps=1)

    input_queue: InputQueue = SimpleQueue()
    first, second, third = Unconnected(), Unconnected("second"), Unconnected("third")
    clients = Clients(first, input_queue, engine_info())
    clients.include(second)
    clients.include(third)
    messages = ((first, DetachClient("second")), (second, add("a")), (third, add("b")))
    for message in messages:
        input_queue.put(message)
    run(cast(Any, OneStep()), input_queue, clients)
    assert second not in clients
    assert news(third) == (["b:1"], True)
    assert news(first) == ([], True)


def test_a_client_that_cannot_be_understood_is_told_and_leaves() -> None:
    first, second = Unconnected(), Unconnected()
    clients = Clients(first, SimpleQueue(), engine_info())
    clients.include(second)
    clients.take(second, add("a"))
    assert clients.take(second, LostMessageError("message 3 was lost")) == ["a"]
    assert isinstance(second.output_queue.take(), Ready)
    assert second.output_queue.take() == Failed("EngineError", "message 3 was lost")
    with pytest.raises(EngineError, match="message 3"):
        clients.take(first, LostMessageError("message 3 was lost"))


def test_what_a_client_does_not_expect_is_told_apart_from_what_others_have() -> None:
    first, second = Unconnected(), Unconnected()
    clients = Clients(first, SimpleQueue(), engine_info())
    clients.include(second)
    clients.take(first, add("a"))
    clients.take(second, add("b", "c"))
    assert clients.orphaned_ids(second, ["b"], {"a", "b", "c"}) == ["c"]
    assert clients.orphaned_ids(first, [], {"a", "b"}) == ["a"]


def test_what_cannot_be_sent_ends_the_engine_and_is_told(tmp_path: Path) -> None:
    input_queue: InputQueue = SimpleQueue()
    client = Client(str(tmp_path), input_queue)
    with zmq.Context() as context, context.socket(zmq.PUSH) as says, context.socket(zmq.PULL) as hears:
        says.bind(f"ipc://{tmp_path}/input")
        hears.bind(f"ipc://{tmp_path}/output")
        decoder: NumberedDecoder[FromEngine] = NumberedDecoder(FrameDecoder(FromEngine))
        client.open()
        configure = Configure(EngineConfig())
        says.send_multipart(NumberedEncoder(FrameEncoder()).encode(configure))
        assert client.greet() == configure
        client.output_queue.put(Loading("weights", cast(Any, np.float64(1)), 2))
        item = input_queue.get(timeout=30)
        assert item is not None
        with pytest.raises(EngineError, match="float64 cannot be sent"):
            Clients(client, input_queue, engine_info()).take(*item)
        client.output_queue.put(Failed("EngineError", "float64 cannot be sent"))
        heard = [decoder.decode(hears.recv_multipart()) for _ in range(2)]
        assert isinstance(heard[0], Hello)
        assert heard[1] == Failed("EngineError", "float64 cannot be sent")
        client.close()


@pytest.mark.parametrize("greeted", [False, True])
def test_foreign_messages_end_the_connection_that_they_come_by(tmp_path: Path, greeted: bool) -> None:
    input_queue: InputQueue = SimpleQueue()
    first = Unconnected()
    clients = Clients(first, input_queue, engine_info())
    with zmq.Context() as context, context.socket(zmq.PUSH) as says, context.socket(zmq.PULL) as hears:
        says.bind(f"ipc://{tmp_path}/input")
        hears.bind(f"ipc://{tmp_path}/output")
        decoder: NumberedDecoder[FromEngine] = NumberedDecoder(FrameDecoder(FromEngine))
        clients.take(first, AttachClient(str(tmp_path)))
        if greeted:
            says.send_multipart(NumberedEncoder(FrameEncoder()).encode(Configure(EngineConfig())))
        says.send(b"GET / HTTP/1.1")
        item = input_queue.get(timeout=30)
        assert item is not None
        clients.take(*item)
        assert item[0] not in clients
        assert first in clients
        heard = [type(decoder.decode(hears.recv_multipart())) for _ in range(3)]
        assert heard == [Hello, Ready, Failed]
