"""The GPU kernel in JAX's interpreter of Mosaic GPU: copies, barriers, warpgroups, and a detector of races."""

import threading
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxllm.pallas_kernels.paged_attention.backend import Backend
from jaxllm.pallas_kernels.paged_attention.cases import Case, Inputs
from jaxllm.pallas_kernels.paged_attention.gpu import attention
from jaxllm.pallas_kernels.paged_attention.gpu.batch import gpu_prepare
from jaxllm.pallas_kernels.paged_attention.inputs import LAYER
from tests.quick import QUICK

interpreter = pytest.importorskip(
    "jax._src.pallas.mosaic_gpu.interpret.interpret_pallas_call", reason="this JAX has no interpreter of Mosaic GPU"
)
thread_map = pytest.importorskip("jax._src.pallas.mosaic.interpret.thread_map")


def _compile_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter compiles a kernel anew for each warpgroup of each block. Once will do: it is 10 times as fast."""
    lock = threading.Lock()
    compiled: dict[int, Any] = {}

    def run(jaxpr: Any, consts: Any, *args: Any) -> None:
        with lock:
            if id(jaxpr) not in compiled:

                def evaluate(consts: Any, *args: Any) -> None:
                    jax.core.eval_jaxpr(jaxpr, consts, *args)

                executable = jax.jit(evaluate).lower(consts, *args).compile(compiler_options=QUICK)
                compiled[id(jaxpr)] = executable, jaxpr  # Kept alive, so that no other gets its id.
        compiled[id(jaxpr)][0](consts, *args)

    monkeypatch.setattr(thread_map, "_run_jaxpr", run)


def bfloat16(case: Case) -> Case:
    """`case` in bfloat16 where it is in float32, which the kernel does not take."""
    kv_dtype = None if case.kv_dtype == "float32" else case.kv_dtype
    return replace(case, dtype="bfloat16", kv_dtype=kv_dtype)


def interpret(inputs: Inputs, monkeypatch: pytest.MonkeyPatch, blocks: int = 2) -> tuple[jax.Array, jax.Array]:
    """Result and cache of a case; fails where a race was found."""
    function = partial(attention.gpu_paged_attention, interpret=True, blocks=blocks)
    monkeypatch.setattr(attention, "BACKEND", Backend(function, prepare=gpu_prepare))
    interpreter.reset_gpu_interpret_mode_state()
    _compile_once(monkeypatch)
    run = jax.jit(lambda inputs: inputs.call("gpu", jnp.int32(LAYER)), compiler_options=QUICK)
    result = jax.block_until_ready(run(inputs))
    assert not interpreter.get_races().races_found
    return result
