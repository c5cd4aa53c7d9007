"""The metrics that processes share: each shows the others what it has measured."""

import tempfile
import threading

import numpy as np

from jaxllm.engine.stats import StepStats
from jaxllm.requests.outputs import EngineOutput
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.telemetry.engine_metrics import EngineState, Measured
from jaxllm.serving.telemetry.metrics import Metrics, ProcessMeasured
from jaxllm.serving.telemetry.shared_metrics import Published, SharedMetrics, make_file
from jaxllm.serving.text.input_processor import TextRequest
from jaxllm.serving.text.output_processor import OutputProcessor
from tests.serving.conftest import engine_info


def published(number: int) -> Published:
    return Published(
        number,
        ProcessMeasured([Measured({"prompt_tokens": number}, {"stop": number}, {"a": ([number] * 500, 0.5, {})})]),
    )


def test_each_sees_what_the_others_have_said_last() -> None:
    with tempfile.TemporaryFile() as file:
        shared = [SharedMetrics(make_file(file, 3), index, 3) for index in range(3)]
        assert shared[0].others() == []
        for number in (1, 2):
            shared[1].publish(published(number))
        assert shared[1].others() == []
        shared[2].publish(published(7))
        assert shared[0].others() == [published(2), published(7)]
        assert shared[2].others() == [published(2)]
        for shared_metrics in shared:
            shared_metrics.close()


def test_what_a_process_has_measured_outlives_it() -> None:
    with tempfile.TemporaryFile() as file:
        handle = make_file(file, 2)
        first, other, supervisor = (
            SharedMetrics(handle, 0, 2),
            SharedMetrics(handle, 1, 2),
            SharedMetrics(handle, -1, 2),
        )
        assert first.own() is None
        for number in (3, 4):
            first.publish(published(number))
        waiting = published(4)
        waiting.measured.without_engine = [2]
        first.publish(waiting)
        first.close()
        supervisor.clear_load(0)
        (left,) = other.others()
        assert (left.load, left.measured) == (0, published(4).measured)
        second = SharedMetrics(handle, 0, 2)
        assert second.own() == left
        second.publish(published(5))
        assert other.others() == [published(5)]


def test_who_dies_while_writing_leaves_what_was_there() -> None:
    with tempfile.TemporaryFile() as file:
        handle = make_file(file, 2)
        writer, reader = SharedMetrics(handle, 0, 2), SharedMetrics(handle, 1, 2)
        for number in range(10, 50, 10):
            writer.publish(published(number))
            whole = bytes(writer._map)
            writer.publish(published(number + 1))
            torn = bytes(writer._map)
            # Of what has changed, only the first part got there.
            changed = np.flatnonzero(np.frombuffer(whole, np.uint8) != np.frombuffer(torn, np.uint8)).tolist()
            for count in (1, 5, len(changed) // 2, len(changed) - 1):
                state = bytearray(whole)
                for place in changed[:count]:
                    state[place] = torn[place]
                writer._map[:] = bytes(state)
                assert reader.others() == [published(number)]
            writer._map[:] = whole


def test_the_engine_has_a_place_of_its_own() -> None:
    with tempfile.TemporaryFile() as file:
        handle = make_file(file, 2)
        worker, supervisor = SharedMetrics(handle, 1, 2), SharedMetrics(handle, -1, 2)
        assert worker.engines() is None
        state = EngineState(StepStats(num_running=3), Measured({"num_preemptions": 2}, {}, {}))
        supervisor.publish_engines([state])
        assert worker.engines() == [state]
        assert worker.others() == []


def test_what_is_read_while_it_is_written_is_whole() -> None:
    with tempfile.TemporaryFile() as file:
        writer, reader = (SharedMetrics(make_file(file, 2), index, 2) for index in range(2))
        writer.publish(published(0))
        over = threading.Event()

        def write() -> None:
            number = 0
            while not over.is_set():
                number += 1
                writer.publish(published(number))

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for _ in range(300):
                for found in reader.others():
                    assert found == published(found.load)
        finally:
            over.set()
            thread.join()
        writer.close()
        reader.close()


def _serve(metrics: Metrics, names: list[str], steps: list[StepStats]) -> None:
    """Requests that get one token and end, in a process that hears of these steps."""
    processor = OutputProcessor(None, measure=True)
    for name in names:
        request = TextRequest(
            request_id=name, prompt=None, prompt_token_ids=[1, 2], params=SamplingParams(), children=[]
        )
        request.children = [Named(name)]  # type: ignore[list-item]
        processor.add(request)
    outputs = [EngineOutput(name, [5], finish_reason="stop") for name in names]
    metrics.observe(steps[0], processor.process(outputs).measurements)
    for step in steps[1:]:
        metrics.observe(step, None)


class Named:
    """Of a request of the engine, its name."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id


def test_requests_add_up_and_the_engine_counts_once() -> None:
    steps = [
        StepStats(2, 0, 0.5, 2, 2, 8, 0.1, prefix_queries=4, num_steps=1),
        StepStats(0, 0, 0.0, 1, 1, 1, 0.1, prefix_queries=9, num_steps=1),
    ]
    here, there = (Metrics(engine_info(), "m") for _ in range(2))
    _serve(here, ["a"], steps)
    _serve(there, ["b", "c"], steps)
    body, _ = here.with_others([there.measured()]).exposition(process=False)
    text = body.decode()
    labels = 'engine="0",model_name="m"'
    for line in (
        f"jaxllm:generation_tokens_total{{{labels}}} 3.0",
        f"jaxllm:prompt_tokens_total{{{labels}}} 6.0",
        f"jaxllm:prefix_cache_queries_total{{{labels}}} 9.0",
        f"jaxllm:e2e_request_latency_seconds_count{{{labels}}} 3.0",
        f"jaxllm:step_seconds_count{{{labels}}} 2.0",
        'jaxllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 3.0',
    ):
        assert line in text, text
    assert "process_cpu_seconds" not in text


def test_what_the_supervisor_knows_of_the_engine_comes_first() -> None:
    """A process that was started later has not heard of all steps."""
    early, late = (Metrics(engine_info(), "m") for _ in range(2))
    for preemptions in (1, 4):
        early.observe(StepStats(2, 0, 0.5, 1, 1, 1, 0.1, num_preemptions=preemptions, num_steps=1), None)
    late.observe(StepStats(1, 0, 0.5, 1, 1, 1, 0.1, num_preemptions=4, num_steps=1), None)
    assert late.with_others([], early.engine_states()).exposition(process=False) == early.exposition(process=False)
