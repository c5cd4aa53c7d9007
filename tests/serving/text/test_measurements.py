"""Requests are measured right, with times given by hand, and amid stop strings and aborts."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxllm.engine.validation import RequestLimits
from jaxllm.requests.outputs import EngineOutput
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.text.input_processor import InputProcessor, TextRequest
from jaxllm.serving.text.measurements import FinishedRequest, Measurements, Meter
from jaxllm.serving.text.output_processor import OutputProcessor
from jaxllm.serving.text.tokenizer import Tokenizer

LIMITS = RequestLimits(vocab_size=360, max_model_len=1000, max_logprobs=5)

Prepare = Callable[..., TextRequest]


def text_request(name: str = "r", *, prompt_tokens: int = 3, arrival: float = 10.0, **params: Any) -> TextRequest:
    """A request that arrived at second 10; with n > 1 its children are NAME-0, NAME-1, ..."""
    settings = SamplingParams(**params)
    prompt = np.arange(prompt_tokens, dtype=np.int32)
    names = [name] if settings.n == 1 else [f"{name}-{index}" for index in range(settings.num_sequences)]
    return TextRequest(
        request_id=name,
        prompt=None,
        prompt_token_ids=prompt.tolist(),
        params=settings,
        children=[Request(request_id=child, prompt_token_ids=prompt, params=settings) for child in names],
        arrival_time=arrival,
    )


def test_one_request_token_by_token() -> None:
    meter = Meter()
    meter.add(text_request(max_tokens=7))
    meter.take(EngineOutput("r", [1], scheduled_time=10.5), 12.0)
    assert meter.read() == Measurements(3, 1, [2.0], [], [])
    meter.take(EngineOutput("r", [1]), 12.25)
    meter.take(EngineOutput("r", [1]), 13.0)
    meter.finish("r", "length", 13.0)
    (finished,) = (measured := meter.read()).finished
    assert (measured.prompt_tokens, measured.generation_tokens) == (0, 2)
    assert (measured.first_token_seconds, measured.inter_token_seconds) == ([], [0.25, 0.75])
    assert finished == FinishedRequest("length", 3.0, 0.5, 1.5, 1.0, 3, 3, max_tokens=7, n=1, max_generation_tokens=3)
    assert finished.inference_seconds == 2.5
    assert finished.seconds_per_output_token == 0.5
    assert meter.read() == Measurements()


def test_merged_outputs_share_the_gap() -> None:
    meter = Meter()
    meter.add(text_request())
    meter.take(EngineOutput("r", [1, 2], scheduled_time=10.0), 11.0)
    meter.take(EngineOutput("r", [1, 2, 3, 4]), 12.0)
    measured = meter.read()
    assert (measured.generation_tokens, measured.first_token_seconds) == (6, [1.0])
    assert measured.inter_token_seconds == [0.0, 0.25, 0.25, 0.25, 0.25]


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 4)), min_size=1, max_size=20))
def test_gaps_add_up_to_the_decode_time(steps: list[tuple[float, int]]) -> None:
    meter = Meter()
    meter.add(text_request())
    now = 10.0
    for gap, count in steps:
        now += gap
        meter.take(EngineOutput("r", [1] * count), now)
    meter.finish("r", "stop", now)
    measured = meter.read()
    (finished,) = measured.finished
    tokens = sum(count for _, count in steps)
    assert measured.generation_tokens == finished.generation_tokens == tokens
    assert len(measured.inter_token_seconds) == max(0, tokens - 1)
    assert sum(measured.inter_token_seconds) == pytest.approx(finished.decode_seconds or 0.0)
    assert (finished.decode_seconds is None) == (tokens == 0)


def test_several_sequences_are_measured_one_by_one() -> None:
    meter = Meter()
    meter.add(text_request(n=2, max_tokens=9))
    meter.take(EngineOutput("r-0", [1], scheduled_time=10.5), 11.0)
    meter.take(EngineOutput("r-1", [1], scheduled_time=11.0), 12.0)
    for now in (13.0, 14.0):
        meter.take(EngineOutput("r-0", [1]), now)
    meter.finish("r-0", "length", 14.0)
    meter.take(EngineOutput("r-1", [1]), 16.0)
    meter.finish("r-1", "stop", 16.0)
    measured = meter.read()
    assert measured.prompt_tokens == 6
    assert measured.first_token_seconds == [1.0, 2.0]
    assert measured.inter_token_seconds == [2.0, 1.0, 4.0]
    first, second = measured.finished
    assert (first.generation_tokens, first.n, first.max_generation_tokens) == (3, None, None)
    assert (second.generation_tokens, second.n, second.max_generation_tokens) == (2, 2, 3)
    assert (first.queue_seconds, second.queue_seconds) == (0.5, 1.0)


def test_cached_tokens_count_with_the_first_token() -> None:
    meter = Meter()
    meter.add(text_request(n=2))
    meter.take(EngineOutput("r-0", [1], num_cached_tokens=2), 11.0)
    meter.take(EngineOutput("r-0", [1], num_cached_tokens=2), 12.0)
    meter.take(EngineOutput("r-1", [], num_cached_tokens=1, finish_reason="abort"), 12.0)
    for name in ("r-0", "r-1"):
        meter.finish(name, "stop", 13.0)
    measured = meter.read()
    assert (measured.prompt_tokens, measured.cached_tokens) == (3, 2)
    assert [each.cached_tokens for each in measured.finished] == [2, 0]


def test_best_of_counts_n_as_given() -> None:
    meter = Meter()
    meter.add(text_request(n=2, best_of=3))
    for index in range(3):
        meter.finish(f"r-{index}", "abort", 11.0)
    assert [finished.n for finished in meter.read().finished] == [None, None, 2]


def test_a_sequence_that_never_ran() -> None:
    meter = Meter()
    meter.add(text_request())
    meter.take(EngineOutput("r", [], finish_reason="abort"), 12.0)
    meter.finish("r", "abort", 12.0)
    (finished,) = meter.read().finished
    assert finished == FinishedRequest("abort", 2.0, None, None, None, 3, 0, 16, n=1, max_generation_tokens=0)
    assert finished.inference_seconds is None
    assert finished.seconds_per_output_token is None


@pytest.fixture
def prepare(tokenizer: Tokenizer) -> Prepare:
    """One checked request for a prompt of two tokens."""

    def make(name: str, **params: Any) -> TextRequest:
        inputs = InputProcessor(tokenizer, LIMITS, [2])
        (request,) = inputs.prepare([[5, 6]], SamplingParams(**params), [name])
        return request

    return make


def measured(processor: OutputProcessor, *outputs: EngineOutput) -> Measurements:
    found = processor.process(outputs).measurements
    assert found is not None
    return found


def test_a_stop_string_ends_a_request_once(tokenizer: Tokenizer, prepare: Prepare) -> None:
    processor = OutputProcessor(tokenizer, measure=True)
    processor.add(prepare("r", stop=["cat"]))
    tokens = tokenizer.encode(["the cat ran"], add_special_tokens=False)[0]
    ends = [measured(processor, EngineOutput("r", [token])) for token in tokens]
    # The engine goes on for a step or two before it knows; then it says that it has ended too.
    (index,) = [index for index, each in enumerate(ends) if each.finished]
    assert index < len(tokens) - 1, "there are tokens behind the stop string"
    assert ends[index].finished[0].reason == "stop"
    assert ends[index].finished[0].generation_tokens == index + 1
    assert sum(each.generation_tokens for each in ends) == index + 1
    assert measured(processor, EngineOutput("r", [], finish_reason="abort")) == Measurements()


def test_tokens_behind_a_stop_string_in_one_output_count_as_generated(tokenizer: Tokenizer, prepare: Prepare) -> None:
    processor = OutputProcessor(tokenizer, measure=True)
    processor.add(prepare("r", stop=["cat"]))
    tokens = tokenizer.encode(["the cat ran away"], add_special_tokens=False)[0]
    found = measured(processor, EngineOutput("r", tokens, finish_reason="length"))
    assert found.generation_tokens == found.finished[0].generation_tokens == len(tokens)
    assert found.finished[0].reason == "stop"


def test_an_abort_is_told_with_the_next_step(tokenizer: Tokenizer, prepare: Prepare) -> None:
    processor = OutputProcessor(tokenizer, measure=True)
    processor.add(prepare("a", n=2, max_tokens=5))
    processor.add(prepare("b", max_tokens=5))
    first = measured(processor, EngineOutput("a-0", [7], finish_reason="stop"), EngineOutput("a-1", [7]))
    assert [finished.reason for finished in first.finished] == ["stop"]
    processor.abort(["a"])
    later = measured(processor, EngineOutput("a-1", [7]), EngineOutput("b", [7]))
    (aborted,) = later.finished
    assert (aborted.reason, aborted.generation_tokens, aborted.n) == ("abort", 1, 2)
    assert later.generation_tokens == 1, "the token of an aborted request counts"


def test_times_are_real(tokenizer: Tokenizer, prepare: Prepare) -> None:
    processor = OutputProcessor(tokenizer, measure=True)
    request = prepare("r", max_tokens=3)
    processor.add(request)
    scheduled = request.arrival_time + 1e-6
    steps = [
        measured(processor, EngineOutput("r", [7], scheduled_time=scheduled)),
        measured(processor, EngineOutput("r", [8])),
        measured(processor, EngineOutput("r", [9], finish_reason="length")),
    ]
    (finished,) = steps[-1].finished
    assert finished.queue_seconds is not None
    assert finished.queue_seconds + (finished.inference_seconds or 0.0) == pytest.approx(finished.e2e_seconds)
    assert steps[0].first_token_seconds[0] == pytest.approx(finished.queue_seconds + (finished.prefill_seconds or 0.0))
    gaps = [each.inter_token_seconds for each in steps]
    assert [len(each) for each in gaps] == [0, 1, 1]
    assert all(before.generation_tokens == after.generation_tokens for before, after in pairwise(steps))


def test_nothing_is_measured_unless_asked_for(tokenizer: Tokenizer, prepare: Prepare) -> None:
    processor = OutputProcessor(tokenizer)
    processor.add(prepare("r", max_tokens=3))
    assert processor.process([EngineOutput("r", [7])]).measurements is None
