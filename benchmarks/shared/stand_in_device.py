"""A device that computes nothing and takes a fixed time for it, after the real engine, scheduler and runner.

Each step calls an executable with the arguments of a real one (as many parameters as Llama-3-8B has, a donated state, a
packed input), because dispatching that is part of the host's work. When its result may be read is up to a clock.
"""

import time
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.config import EngineConfig
from jaxllm.engine.engine import Engine
from jaxllm.executor.compile.buckets import Bucket, Buckets
from jaxllm.executor.compile.compilations import CompilationWatch
from jaxllm.executor.compile.executables import Executables
from jaxllm.executor.device_calls import DeviceCalls
from jaxllm.executor.device_state import DeviceState
from jaxllm.executor.resolve import resolve_config
from jaxllm.executor.runner import Runner
from jaxllm.executor.sampler.logprobs import no_logprobs
from jaxllm.executor.sampler.rows import SamplingState
from jaxllm.executor.sampler.sampler import SampledRows
from jaxllm.executor.sampler.table import SamplingTable
from jaxllm.executor.state_programs import set_pages
from jaxllm.executor.step_inputs import StepShape
from jaxllm.models.cache import Cache

NUM_PARAMETERS = 291
"""Arrays of Llama-3-8B."""

VOCABULARY = 128_256
HEADROOM = 2048
"""Tokens that a request may generate."""

TOKEN = 7
"""What is always sampled."""


class Clock:
    """When the device is busy. `gaps`: seconds it waited before each step for the host.

    With `processor_time` the clock is that of this thread's processor time, and jumps where the host would wait: what
    other processes do does not count then, nor does what waking up costs.
    """

    def __init__(self, step_seconds: float, *, processor_time: bool = False) -> None:
        self.step_seconds = step_seconds
        self.gaps: list[float] = []
        self._processor_time = processor_time
        self._waited = 0.0
        self._free_at = self.now()

    def now(self) -> float:
        """Seconds since some moment."""
        return time.thread_time() + self._waited if self._processor_time else time.perf_counter()

    def wait_until(self, moment: float) -> None:
        """Let time pass."""
        left = max(0.0, moment - self.now())
        if self._processor_time:
            self._waited += left
        else:
            time.sleep(left)

    def start(self) -> float:
        """Queue a step; returns when it will be done."""
        now = self.now()
        self.gaps.append(max(0.0, now - self._free_at))
        self._free_at = max(now, self._free_at) + self.step_seconds
        return self._free_at


@dataclass(frozen=True)
class Result:
    """An array that is there when its step is done; as much of `jax.Array` as the runner uses."""

    array: jax.Array
    clock: Clock
    done_at: float

    def copy_to_host_async(self) -> None:
        """Begin the transfer."""
        self.array.copy_to_host_async()

    def __array__(self) -> np.ndarray:
        """Wait for the step."""
        self.clock.wait_until(self.done_at)
        return np.asarray(self.array)


class StandInExecutables:
    """In the place of `Executables`, for requests that ask for nothing special."""

    def __init__(self, shape: StepShape, state: DeviceState, buckets: Buckets, clock: Clock) -> None:
        self._shape = shape
        self._clock = clock
        self._state = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
        self._steps: dict[str, Any] = {}
        self._buckets = {bucket.name: bucket for bucket in buckets.all}
        self._set_pages = jax.jit(set_pages, donate_argnums=0).lower(*self._page_arguments()).compile()

    def _page_arguments(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        table, rows = self._state.page_table, self._shape.rows_at_once
        int32 = partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
        return table, int32((rows,)), int32((rows, table.shape[1]))

    def close(self) -> None:
        """There is nothing to give back."""

    def get(self, name: str) -> Any:
        """The step of a bucket, `(parameters, adapters, state, packed) -> (SampledRows, state)`, or "set_pages"."""
        if name == "set_pages":
            return self._set_pages
        compiled = self._steps.get(name) or self._steps.setdefault(name, self._compile(self._buckets[name]))

        def run(*arguments: Any) -> tuple[SampledRows, DeviceState]:
            sampled, state = compiled(*arguments)
            token_ids = cast(jax.Array, Result(sampled.token_ids, self._clock, self._clock.start()))
            return replace(sampled, token_ids=token_ids), state

        return run

    def _compile(self, bucket: Bucket) -> Any:
        def step(
            parameters: Any, adapters: Any, state: DeviceState, packed: jax.Array
        ) -> tuple[SampledRows, DeviceState]:
            del parameters, adapters, packed
            tokens = jnp.full(bucket.rows, TOKEN, jnp.int32)
            return SampledRows(tokens, no_logprobs(bucket.rows, self._shape.max_logprobs)), state

        parameters = (jax.ShapeDtypeStruct((8,), jnp.float32),) * NUM_PARAMETERS
        packed = jax.ShapeDtypeStruct((self._shape.layout(bucket).size,), jnp.int32)
        made = jax.jit(step, donate_argnums=2, keep_unused=True)
        return made.lower(parameters, (), self._state, packed).compile()


def stand_in_engine(
    *, running: int, context: int, budget: int, clock: Clock, async_scheduling: bool = True, block_size: int = 16
) -> Engine:
    """An engine with room for `running` requests of `context` tokens that share most of their pages."""
    options = {
        "model": "demo",
        "max_num_seqs": running,
        "max_num_batched_tokens": budget,
        "block_size": block_size,
        "async_scheduling": async_scheduling,
    }
    resolved = resolve_config(EngineConfig.from_options(options))
    model = replace(resolved.model, vocab_size=VOCABULARY, max_position_embeddings=context)
    resolved = replace(resolved, model=model, max_model_len=context)
    width = -(-context // block_size)
    shape = StepShape(table_width=width, page_size=block_size, max_logprobs=20, sample_rows=16)
    state = DeviceState(
        kv_cache=Cache((jnp.zeros(8),)),
        sampling=SamplingState(jnp.zeros((1, 8), jnp.int32), jnp.zeros((1, 8))),
        page_table=jnp.zeros((running, width), jnp.int32),
        last_tokens=jnp.zeros(running, jnp.int32),
        hidden=jnp.zeros(8),
    )
    held = [each for each in fields(state) if getattr(state, each.name) is not None]
    assert len(held) == len(jax.tree.leaves(state)) - 1, "a new field belongs here as well"
    buckets = Buckets(budget, running)
    runner = Runner(
        calls=DeviceCalls(
            cast(Executables, StandInExecutables(shape, state, buckets, clock)),
            tuple(jnp.zeros(8) for _ in range(NUM_PARAMETERS)),
            state=state,
        ),
        buckets=buckets,
        shape=shape,
        sampling=SamplingTable(running, VOCABULARY),
        watch=CompilationWatch(strict=False),
    )
    # Each request beyond the first needs a handful of pages of its own.
    own = -(-(HEADROOM + 2 * block_size) // block_size)
    return Engine(resolved, runner, width + running * (own + 2) + 1)
