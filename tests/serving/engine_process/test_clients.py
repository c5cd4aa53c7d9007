"""Several clients of one engine: each gets the news of its own requests, whatever the others do."""

from queue import SimpleQueue

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxllm.outputs import EngineOutput
from jaxllm.owner import NOBODY
from jaxllm.sampling_params import SamplingParams
from jaxllm.serving.engine_process.clients import Client, Clients
from jaxllm.serving.engine_process.messages import Abort, Add, Finish, Outputs
from jaxllm.stats import StepStats
from tests.serving.conftest import engine_info

COUNT = 3


def add(*names: str) -> Add:
    sequences = [(name, SamplingParams()) for name in names]
    return Add(np.array([1], np.int32), sequences, 0, None, (), NOBODY)


def news(client: Client) -> tuple[list[str], bool]:
    """Requests of which a client is told, and whether it is told of a step."""
    client.outbox.put_outputs([], None)
    client.outbox.close()
    outputs: list[str] = []
    told = False
    while (message := client.outbox.take()) is not None:
        if isinstance(message, Outputs):
            outputs += [f"{output.request_id}:{token}" for output in message.outputs for token in output.token_ids]
            told |= message.stats is not None
    return outputs, told


class Unconnected(Client):
    """A client without sockets: what is put into its outbox stays there."""

    def __init__(self) -> None:
        super().__init__("nowhere")


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
            clients.notice(made[index], add(f"r{number}"))
        elif what == "step":
            for name, owner in running.items():
                want[owner].append(f"{name}:{number}")
            clients.put_outputs([EngineOutput(name, [number]) for name in running], StepStats(num_steps=1))
        elif own:
            name = own[0]
            del running[name]
            if what == "abort":
                clients.notice(made[index], Abort([name]))
            elif what == "finish":
                clients.notice(made[index], Finish([(name, "stop")]))
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
    clients.notice(second, add("a"))
    clients.notice(second, Abort(["a"]))
    clients.put_outputs([EngineOutput("a", [1])], None)
    assert news(second) == ([], False)
    assert news(first) == (["a:1"], False)
