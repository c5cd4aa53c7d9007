"""The engine's figures of its steps agree with the requests it was given."""

import time

import pytest
from jax import tree
from msgspec import json, msgpack

from jaxllm.engine.engine import Engine
from jaxllm.engine.stats import StepStats
from jaxllm.engine.step_log import WATCHED_SECONDS
from jaxllm.engine.views import LiveView, ModelView
from jaxllm.requests.outputs import EngineOutput
from tests.e2e.driving import request


def test_a_few_steps(engine: Engine) -> None:
    before = engine.stats()
    added = time.monotonic()
    page = engine.info.block_size
    for name in range(3):
        engine.add_request(request(f"stats-{name}", [50 + name] * (2 * page + 1), max_tokens=4, ignore_eos=True))
    assert (engine.stats().num_waiting, engine.stats().num_running) == (3, 0)

    outputs = engine.step()
    stepped = time.monotonic()
    stats = engine.stats()
    assert (stats.num_waiting, stats.num_running) == (0, 3)
    assert (stats.num_rows, stats.num_tokens) == (3, 3 * (2 * page + 1))
    assert stats.bucket_tokens == engine.runner._buckets.fit(stats.num_tokens).tokens
    assert 0 < stats.step_seconds <= stepped - added
    assert stats.kv_usage == pytest.approx(9 / (engine.info.num_pages - 1))
    assert stats.prefix_queries - before.prefix_queries == stats.num_tokens
    assert stats.prefix_hits == before.prefix_hits
    assert len(outputs) == 3
    assert all(added <= (output.scheduled_time or 0) <= stepped for output in outputs)

    assert [output.scheduled_time for output in engine.step()] == [None] * 3
    assert (engine.stats().num_rows, engine.stats().num_tokens, engine.stats().bucket_tokens) == (3, 3, 8)
    engine.step()
    engine.step()
    after = engine.stats()
    assert (after.num_running, after.kv_usage, after.num_rows) == (0, 0.0, 3)
    assert engine.step() == []
    assert (engine.stats().num_rows, engine.stats().num_tokens, engine.stats().step_seconds) == (0, 0, 0.0)

    engine.add_request(request("stats-again", [50] * (2 * page + 1), max_tokens=1, ignore_eos=True))
    (output,) = engine.step()
    assert engine.stats().prefix_hits - before.prefix_hits == 2 * page == output.num_cached_tokens
    assert engine.stats().num_compilations == 0


def test_a_prompt_in_chunks_has_one_scheduled_time(engine: Engine) -> None:
    engine.add_request(request("long", [61] * (engine.info.max_num_batched_tokens + 10), max_tokens=2, ignore_eos=True))
    began = time.monotonic()
    assert engine.step() == []
    first_step = time.monotonic()
    first, second = engine.step() + engine.step()
    assert first.scheduled_time is not None
    assert began <= first.scheduled_time <= first_step
    assert second.scheduled_time is None


def test_an_aborted_prompt_says_when_it_was_scheduled(engine: Engine) -> None:
    budget = engine.info.max_num_batched_tokens
    engine.add_request(request("filler", [62] * (budget - 5), max_tokens=1))
    for name in ("begun", "waiting"):
        engine.add_request(request(name, [63] * (budget + 100), max_tokens=1))
    engine.step()
    assert (engine.stats().num_running, engine.stats().num_waiting) == (1, 1)
    engine.abort_request(["begun", "waiting"])
    begun, waiting = engine.step()
    assert begun.finish_reason == waiting.finish_reason == "abort"
    assert begun.scheduled_time is not None
    assert waiting.scheduled_time is None
    assert engine.stats().num_tokens == 0


def test_merged_steps() -> None:
    first = StepStats(3, 4, 0.5, 2, 17, 32, 0.25, 100, 50, 1, 2, 1)
    then = StepStats(1, 0, 0.25, 1, 7, 8, 0.5, 120, 60, 1, 2, 1)
    shapes = ((32, 1, 0.25), (8, 1, 0.5))
    assert first.merged(then) == StepStats(1, 0, 0.25, 3, 24, 40, 0.75, 120, 60, 1, 2, 2, merged_shapes=shapes)
    again = first.merged(then).merged(first)
    assert again.shapes() == ((32, 2, 0.5), (8, 1, 0.5))
    assert first.shapes() == ((32, 1, 0.25),)
    assert StepStats().shapes() == StepStats().merged(StepStats()).shapes() == ()


def test_travels_as_a_message() -> None:
    stats = StepStats(3, 4, 0.5, 2, 17, 32, 0.25, 100, 50, 1, 2, 1)
    assert msgpack.decode(msgpack.encode(stats), type=StepStats) == stats
    output = EngineOutput("a", [1], scheduled_time=2.5)
    assert msgpack.decode(msgpack.encode(output), type=EngineOutput) == output


def finish(engine: Engine) -> list[StepStats]:
    """Run all steps; their statistics."""
    found = []
    while engine.has_unfinished_requests():
        engine.step()
        found.append(engine.stats())
    return [each for each in found if each.num_steps]


def test_steps_are_recorded_while_somebody_watches(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.add_request(request("unwatched", [70] * 5, max_tokens=3, ignore_eos=True))
    finish(engine)
    assert json.decode(engine.live_view(), type=LiveView).steps == []
    began = time.monotonic()
    for name in range(3):
        engine.add_request(request(f"watched-{name}", [70 + name] * 9, max_tokens=4, ignore_eos=True))
    ran = finish(engine)
    ended = time.monotonic()
    seen = json.decode(engine.live_view(), type=LiveView)
    assert began <= ended <= seen.now
    assert [step.number for step in seen.steps] == [seen.steps[0].number + place for place in range(len(ran))]
    before = 0.0
    for step, stats in zip(seen.steps, ran, strict=True):
        assert (step.shape, step.tokens, step.rows) == (stats.bucket_tokens, stats.num_tokens, stats.num_rows)
        assert began <= step.began
        assert 0 < step.dispatched <= step.device <= step.ready <= step.ended
        assert before <= step.began + step.device + 1e-5, "the device does one step after the other"
        before = step.began + step.ready
        assert step.bytes > step.flops / 1000 > 0
    assert before <= ended
    # A prompt of three times 9 tokens is more work than one token of each.
    assert seen.steps[0].flops > 5 * seen.steps[1].flops
    # Nobody has asked for a while: the next step is the last one that is recorded.
    now = time.monotonic
    monkeypatch.setattr(engine.step_log, "_until", now() - WATCHED_SECONDS)
    engine.add_request(request("last", [70] * 5, max_tokens=4, ignore_eos=True))
    finish(engine)
    assert not engine.step_log.is_on
    after = json.decode(engine.live_view(), type=LiveView)
    assert [step.number for step in after.steps][:-1] == [step.number for step in seen.steps]
    monkeypatch.undo()
    engine.step_log.is_on = False


def test_memory_by_part_and_programs_with_their_times(engine: Engine) -> None:
    seen = json.decode(engine.model_view(), type=ModelView)
    memory = {part.name: part.bytes for part in seen.memory}
    calls = engine.runner.calls
    assert memory["Weights"] == sum(each.nbytes for each in calls.parameters)
    assert memory["KV cache"] == sum(each.nbytes for each in tree.leaves(calls.state.kv_cache))
    assert 0 < memory["Requests' sampling"] < memory["KV cache"]
    shapes = {program.tokens: program for program in seen.programs if program.tokens is not None}
    assert {*shapes} <= {bucket.tokens for bucket in engine.runner.buckets}
    assert all(program.seconds > 0 for program in seen.programs)
    assert (seen.peak_flops, seen.peak_bandwidth) == (None, None), "nobody knows this CPU"
