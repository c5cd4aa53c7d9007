"""The output_queue: nothing is lost, order is kept, and it does not grow while nobody reads."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from jaxllm.engine.stats import StepStats
from jaxllm.requests.outputs import EngineOutput, TokenLogprobs
from jaxllm.serving.ipc.engine_process.output_queue import OutputQueue
from jaxllm.serving.ipc.messages import Called, Credit, Outputs, Reconciled
from jaxllm.serving.ipc.wire import CREDIT


def step(output_queue: OutputQueue, number: int, *names: str, finish: str | None = None) -> None:
    logprobs = [TokenLogprobs(number, -1.0, 1)]
    outputs = [EngineOutput(name, [number], logprobs=logprobs, finish_reason=finish) for name in names]
    output_queue.put_outputs(outputs, StepStats(num_running=number))


@given(st.lists(st.one_of(st.none(), st.sets(st.sampled_from("abcd"), max_size=4)), max_size=40))
def test_every_token_arrives_once_and_in_order(events: list[set[str] | None]) -> None:
    """An event is a step with news of some requests, or (None) the reader taking a message."""
    output_queue = OutputQueue()
    sent: dict[str, list[int]] = {name: [] for name in "abcd"}
    received: dict[str, list[int]] = {name: [] for name in "abcd"}

    def take() -> None:
        message = output_queue.take()
        assert isinstance(message, Outputs)
        assert len({output.request_id for output in message.outputs}) == len(message.outputs)
        for output in message.outputs:
            assert output.logprobs is not None
            assert [item.token_id for item in output.logprobs] == output.token_ids
            received[output.request_id] += output.token_ids

    waiting = False
    for number, event in enumerate(events):
        if event is not None:
            step(output_queue, number, *event)
            waiting = True
            for name in event:
                sent[name].append(number)
        elif waiting:
            take()
            waiting = False
    if waiting:
        take()
    assert received == sent


def test_the_end_of_a_request_and_the_latest_state_are_kept() -> None:
    output_queue = OutputQueue()
    before, after = StepStats(num_running=3, num_rows=3, num_steps=1), StepStats(num_running=1, num_rows=2, num_steps=1)
    output_queue.put_outputs([EngineOutput("a", [1], num_cached_tokens=16, scheduled_time=2.5)], before)
    output_queue.put_outputs([EngineOutput("a", [2], finish_reason="stop", stop_reason="x")], after)
    message = output_queue.take()
    assert isinstance(message, Outputs)
    (output,) = message.outputs
    assert (output.token_ids, output.finish_reason, output.stop_reason) == ([1, 2], "stop", "x")
    assert (output.num_cached_tokens, output.scheduled_time) == (16, 2.5)
    assert message.stats == StepStats(num_running=1, num_rows=5, num_steps=2, merged_shapes=((0, 2, 0.0),))


def test_a_step_without_outputs_is_told_too() -> None:
    output_queue = OutputQueue()
    output_queue.put_outputs([], StepStats(num_waiting=2))
    assert output_queue.take() == Outputs([], StepStats(num_waiting=2))


def test_news_outside_of_a_step() -> None:
    output_queue = OutputQueue()
    output_queue.put_outputs([EngineOutput("a", [], finish_reason="abort")], None)
    assert output_queue.take() == Outputs([EngineOutput("a", [], finish_reason="abort")], None)


def test_messages_go_first_and_closing_ends_the_reader() -> None:
    output_queue = OutputQueue()
    step(output_queue, 1, "a")
    output_queue.put(Called(1, result=True))
    taken: list[object] = []
    reader = threading.Thread(target=lambda: taken.extend(iter(output_queue.take, None)))
    reader.start()
    output_queue.close()
    reader.join(10)
    assert [type(message) for message in taken] == [Called, Outputs]


def test_what_is_to_come_behind_the_outputs_of_before() -> None:
    output_queue = OutputQueue()
    step(output_queue, 1, "a")
    output_queue.put_behind(Reconciled(7, []))
    assert isinstance(output_queue.take(), Outputs)
    # It does not wait until there are no outputs at all: under load there always are some.
    step(output_queue, 2, "a")
    assert output_queue.take() == Reconciled(7, [])
    assert isinstance(output_queue.take(), Outputs)
    output_queue.put_behind(Reconciled(8, []))
    assert output_queue.take() == Reconciled(8, [])


def test_credit_is_given_also_when_there_is_nothing_else_to_say() -> None:
    output_queue = OutputQueue()
    for _ in range(CREDIT // 2):
        output_queue.count_taken()
    assert output_queue.take() == Credit()
    output_queue.close()
    assert output_queue.take() is None
