import logging
import threading
import time

import numpy as np
import pytest

from jaxllm.config import EngineConfig
from jaxllm.engine.engine import Engine
from jaxllm.executor.compile.background import BackgroundCompilation, startup_buckets
from jaxllm.executor.compile.buckets import Bucket, Buckets
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams

OPTIONS = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": 32,
    "max_model_len": 128,
    "optimization_level": 0,
    "strict_compilation": True,
}


def generate(engine: Engine, num_requests: int) -> dict[str, list[int]]:
    for index in range(num_requests):
        prompt = np.arange(100, 120 + index, dtype=np.int32)
        params = SamplingParams(max_tokens=12, seed=index, ignore_eos=True)
        engine.add_request(Request(request_id=str(index), prompt_token_ids=prompt, params=params))
    tokens: dict[str, list[int]] = {str(index): [] for index in range(num_requests)}
    while engine.has_unfinished_requests():
        for output in engine.step():
            tokens[output.request_id] += output.token_ids
    return tokens


def test_an_engine_serves_while_shapes_are_missing_and_uses_each_once_it_is_there() -> None:
    # It comes first: the other one, which has no cache, then need not compile kernels for the CPU.
    whole = Engine.from_config(EngineConfig.from_options(OPTIONS))
    engine = Engine.from_config(
        EngineConfig.from_options({**OPTIONS, "background_compilation": True, "compilation_cache_dir": ""})
    )
    try:
        assert generate(engine, 5) == (expected := generate(whole, 5))
        deadline = time.monotonic() + 60
        while engine.runner._background is not None and not engine.runner._background.complete:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert generate(engine, 5) == expected
        assert engine.stats().num_compilations == 0
    finally:
        engine.close()
        whole.close()


def test_until_a_shape_is_there_its_steps_run_in_a_larger_one() -> None:
    buckets = Buckets(64, 8)
    made = {Bucket(1, 1), Bucket(64, 8)}
    assert buckets.fit_among(1, made.__contains__) == Bucket(1, 1)
    assert buckets.fit_among(2, made.__contains__) == Bucket(64, 8)
    made.add(Bucket(16, 8))
    assert buckets.fit_among(9, made.__contains__) == Bucket(16, 8)
    assert startup_buckets(buckets) == (Bucket(1, 1), Bucket(8, 8), Bucket(64, 8))
    assert startup_buckets(Buckets(1, 1)) == (Bucket(1, 1),)


BUCKETS = (Bucket(8, 8), Bucket(16, 8), Bucket(32, 8))


class Shapes:
    """Executables that are made only when told to; one of them cannot be made."""

    def __init__(self, broken: Bucket | None = None) -> None:
        self.go_on = threading.Event()
        self.made: list[Bucket] = []
        self._broken = broken

    def has(self, name: str) -> bool:
        return any(each.name == name for each in BUCKETS)

    def get(self, name: str) -> None:
        bucket = next(each for each in BUCKETS if each.name == name)
        assert self.go_on.wait(10)
        if bucket == self._broken:
            raise RuntimeError("does not fit")
        self.made.append(bucket)


def test_stopping_begins_no_further_shape() -> None:
    shapes = Shapes()
    background = BackgroundCompilation(shapes, [Bucket(8, 8), Bucket(16, 8), Bucket(32, 8)])  # type: ignore[arg-type]
    background.stop()
    shapes.go_on.set()
    background._thread.join(10)
    assert len(shapes.made) <= 1
    assert not background.complete


def test_a_shape_that_cannot_be_made_is_told_of_and_never_used(caplog: pytest.LogCaptureFixture) -> None:
    shapes = Shapes(broken=Bucket(8, 8))
    shapes.go_on.set()
    with caplog.at_level(logging.ERROR):
        background = BackgroundCompilation(shapes, [Bucket(8, 8), Bucket(16, 8)])  # type: ignore[arg-type]
        background._thread.join(10)
    assert shapes.made == [Bucket(16, 8)]
    assert not background.complete
    assert "8 tokens" in caplog.text
