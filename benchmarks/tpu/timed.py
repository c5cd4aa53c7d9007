"""How long our kernels take on the TPU that is here. On a CPU they run in Pallas's interpreter, to try all of it."""

import time
from dataclasses import asdict
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.errors import JaxRuntimeError
from jax.experimental.pallas import tpu as pltpu

from benchmarks.tpu.cases import Case
from benchmarks.tpu.kernels import Call, jaxllm_call
from benchmarks.tpu.worker import SMALL, blocks_in_use, case_of, serve
from jaxllm.pallas_kernels.paged_attention.tpu.common import Blocks

REPEATS = 50
"""Calls in one program, each waiting for the one before: what the host does is not measured."""

RUNS = 5
"""Of these, the shortest counts."""

LARGEST_ERROR = 0.02
"""Other blocks round otherwise. Values are at most 1, and a bfloat16 has 8 bits."""


class Timer:
    """Times cases with one choice of blocks after the other, and compares their results."""

    def __init__(self) -> None:
        self.device = jax.local_devices()[0]
        self._interpreted = self.device.platform != "tpu"
        self._expected: dict[str, np.ndarray] = {}

    def microseconds(self, case: Case, **blocks: Any) -> float:
        """Of one call. `blocks` are those of `jaxllm_call`.

        Raises:
            ValueError: the result is not that of the first blocks with which the case was timed.
        """
        call = self._call(case, **blocks)
        q, k, v, cache, *others = _arguments(call)

        def attend(repeats: int, q: Any, cache: Any, *others: Any) -> Any:
            def once(_: Any, carry: Any) -> Any:
                return call.function(carry[0], k, v, carry[1], *others)

            return lax.fori_loop(0, repeats, once, (q, cache))

        run = jax.jit(attend, static_argnums=0, donate_argnums=2)
        out, cache = run(1, q, cache, *others)
        self._compare(case, out)
        repeats, times = 1 if self._interpreted else REPEATS, []
        for _ in range(1 + RUNS if repeats > 1 else 1):
            begin = time.perf_counter()
            out, cache = jax.block_until_ready(run(repeats, q, cache, *others))
            times.append(time.perf_counter() - begin)
        # The first has compiled.
        return min(times[1:] or times) / repeats * 1e6

    def _call(self, case: Case, **blocks: Any) -> Call:
        if not self._interpreted:
            return jaxllm_call(case, **blocks)
        pages = len(case.rows) * case.pages_per_row + 1
        return jaxllm_call(case, pages=pages, interpret=pltpu.InterpretParams(), **blocks)

    def _compare(self, case: Case, out: jax.Array) -> None:
        found = np.asarray(out, np.float32)
        expected = self._expected.setdefault(case.name, found)
        error = float(np.nan_to_num(np.abs(found - expected), nan=np.inf).max())
        if error > LARGEST_ERROR:
            raise ValueError(f"the result is off by {error:.1e}")


def _arguments(call: Call) -> list[jax.Array]:
    """Arrays on the device: given ones, and such that no two rows are alike in place of shapes."""
    return [_waves(each) if isinstance(each, jax.ShapeDtypeStruct) else jnp.asarray(each) for each in call.arguments]


def _waves(array: jax.ShapeDtypeStruct) -> jax.Array:
    def make() -> jax.Array:
        # Fused into one loop, a cache of gibibytes needs no memory alongside it.
        phase = sum(
            lax.broadcasted_iota(jnp.float32, array.shape, axis) * (0.37 + 0.61 * axis)
            for axis in range(len(array.shape))
        )
        return jnp.sin(phase).astype(array.dtype)

    return jax.jit(make)()


def _answer(timer: Timer, question: dict[str, Any]) -> dict[str, Any]:
    if not question:
        return {"device_kind": timer.device.device_kind}
    case, kernel = case_of(question), question["kernel"]
    if "blocks" not in question:
        return {"blocks": asdict(blocks_in_use(kernel, case))}
    blocks = SMALL | {kernel: Blocks(**question["blocks"])}
    try:
        return {"microseconds": timer.microseconds(case, **{f"{name}_blocks": size for name, size in blocks.items()})}
    except (JaxRuntimeError, ValueError, NotImplementedError) as error:
        return {"error": str(error).splitlines()[0][:200]}


if __name__ == "__main__":
    serve(partial(_answer, Timer()))
