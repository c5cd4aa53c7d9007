"""Compiles every step shape ahead of time, several at once, into JAX's persistent compilation cache."""

import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.experimental.compilation_cache import compilation_cache

from jaxllm.config import CompileOptions
from jaxllm.models.causal_lm import CausalLM
from jaxllm.progress import Progress, silent
from jaxllm.runner.buckets import Bucket
from jaxllm.runner.sampling_rows import set_bias, set_row
from jaxllm.runner.sampling_table import UPDATE_SIZE
from jaxllm.runner.step import PROMPT_LOGPROB_ROWS, DeviceState, StepShape, make_prompt_logprobs, make_step

logger = logging.getLogger(__name__)

Shapes = Any
"""A pytree of `jax.ShapeDtypeStruct`."""


def use_compilation_cache(folder: str | None) -> None:
    """Turn JAX's persistent compilation cache on, unless the process has chosen one itself.

    None means the default folder, an empty string no cache.
    """
    if folder == "" or jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(folder) if folder else Path(cache) / "jaxllm" / "xla"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        logger.warning("no compilation cache: %s", error)
        return
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # JAX decides once per process whether there is a cache, and may have done so already.
    compilation_cache.reset_cache()


@dataclass(frozen=True)
class StepSpec:
    """All that determines the executables: the model's graph, the shapes of its arrays, and of a step."""

    graph: nnx.GraphDef[CausalLM]
    parameters: Shapes
    state: DeviceState
    """Shapes of the device state."""
    shape: StepShape


class Executables:
    """The compiled step of every bucket, and the few executables beside it, which have one shape each."""

    def __init__(self, spec: StepSpec, options: CompileOptions) -> None:
        self._spec = spec
        self._options = options
        self._leaves, self._tree = jax.tree.flatten(spec.parameters)
        self._compiled: dict[Bucket | str, jax.stages.Compiled] = {}
        self._others: dict[str, Callable[[], jax.stages.Lowered]] = {
            "prompt_logprobs": self._lower_prompt_logprobs,
            "set_row": self._lower_set_row,
            "set_bias": self._lower_set_bias,
        }

    @contextmanager
    def compiling(self, buckets: Iterable[Bucket], progress: Progress = silent) -> Iterator[None]:
        """Compile the step of each bucket, the largest first, and everything beside the steps, during the block.

        Leaving the block waits for the rest. An exception in it (weights that cannot be loaded, say) gives up what has
        not begun.
        """
        keys: list[Bucket | str] = [*sorted(buckets, reverse=True), *self._others]
        workers = self._options.compile_workers or os.cpu_count() or 1
        finished = itertools.count(1)
        progress("Compiling", 0, len(keys))

        def compile_one(key: Bucket | str) -> None:
            self._get(key)
            progress("Compiling", next(finished), len(keys))

        with ThreadPoolExecutor(workers, thread_name_prefix="compile") as pool:
            try:
                pending = [pool.submit(compile_one, key) for key in keys]
                yield
                for future in as_completed(pending):
                    future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def step(self, bucket: Bucket) -> jax.stages.Compiled:
        """`(parameter leaves, state, packed) -> (SampledRows, state)`; compiled now if it was not before."""
        return self._get(bucket)

    @property
    def prompt_logprobs(self) -> jax.stages.Compiled:
        """`(parameter leaves, hidden, first, targets) -> Logprobs`, see `make_prompt_logprobs`."""
        return self._get("prompt_logprobs")

    @property
    def set_row(self) -> jax.stages.Compiled:
        """`(SamplingState, slot, counts, seen, bias) -> SamplingState`, see `jaxllm.runner.sampling_rows.set_row`."""
        return self._get("set_row")

    @property
    def set_bias(self) -> jax.stages.Compiled:
        """`(SamplingState, slots, token_ids, values) -> SamplingState`, see `sampling_rows.set_bias`."""
        return self._get("set_bias")

    def _get(self, key: Bucket | str) -> jax.stages.Compiled:
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = self._compile(key)
        return compiled

    def _compile(self, key: Bucket | str) -> jax.stages.Compiled:
        lowered = self.lower(key) if isinstance(key, Bucket) else self._others[key]()
        return lowered.compile(compiler_options=self._compiler_options())

    def _compiler_options(self) -> dict[str, Any]:
        """What differs from XLA's defaults, which are its highest level."""
        level = self._options.optimization_level
        if level == 3 or jax.default_backend() != "cpu":
            return {}
        return {"xla_backend_optimization_level": level}

    def lower(self, bucket: Bucket) -> jax.stages.Lowered:
        """The step of a bucket, traced and lowered."""
        function = make_step(self._spec.graph, self._spec.shape, bucket)

        def step(leaves: tuple[Any, ...], state: DeviceState, packed: jax.Array) -> Any:
            return function(jax.tree.unflatten(self._tree, leaves), state, packed)

        step.__name__ = f"step_{bucket.tokens}_tokens"
        packed = _int32(self._spec.shape.layout(bucket).size)
        return jax.jit(step, donate_argnums=1).lower(tuple(self._leaves), self._spec.state, packed)

    def _lower_prompt_logprobs(self) -> jax.stages.Lowered:
        function = make_prompt_logprobs(self._spec.graph, self._spec.shape.max_logprobs)

        def prompt_logprobs(leaves: tuple[Any, ...], *arguments: jax.Array) -> Any:
            return function(jax.tree.unflatten(self._tree, leaves), *arguments)

        arguments = (self._spec.state.hidden, _int32(), _int32(PROMPT_LOGPROB_ROWS))
        return jax.jit(prompt_logprobs).lower(tuple(self._leaves), *arguments)

    def _lower_set_row(self) -> jax.stages.Lowered:
        state = self._spec.state.sampling
        rows = [jax.ShapeDtypeStruct(state.bias.shape[1:], dtype) for dtype in (np.int32, np.bool_, np.float32)]
        return jax.jit(set_row, donate_argnums=0).lower(state, _int32(), *rows)

    def _lower_set_bias(self) -> jax.stages.Lowered:
        values = jax.ShapeDtypeStruct((UPDATE_SIZE,), np.float32)
        arguments = (self._spec.state.sampling, _int32(UPDATE_SIZE), _int32(UPDATE_SIZE), values)
        return jax.jit(set_bias, donate_argnums=0).lower(*arguments)


def _int32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.int32)
