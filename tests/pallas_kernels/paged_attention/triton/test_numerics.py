"""The kernel for all GPUs in Pallas's interpreter, against the oracle; and what it refuses."""

import functools
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from jaxllm.pallas_kernels.paged_attention.backend import Backend, Heads
from jaxllm.pallas_kernels.paged_attention.cases import CASES, LONG_CASES, Case, Inputs
from jaxllm.pallas_kernels.paged_attention.gpu import batch
from jaxllm.pallas_kernels.paged_attention.inputs import LAYER, abstract_inputs
from jaxllm.pallas_kernels.paged_attention.triton import attention
from tests.pallas_kernels.paged_attention.covering import joined
from tests.pallas_kernels.paged_attention.oracle import Result, cached_inputs, check
from tests.quick import FAST, QUICK
from tests.thinned import thinned

TAKEN = tuple(case for case in CASES if case.cache_dtype.itemsize > 1)


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    function = functools.partial(attention.triton_paged_attention, interpret=True)
    monkeypatch.setattr(attention, "BACKEND", Backend(function, prepare=attention.triton_prepare, supports_spans=True))


def run(inputs: Inputs, options: dict[str, str | bool] = QUICK) -> Result:
    compiled = jax.jit(lambda inputs: inputs.call("triton", jnp.int32(LAYER)), compiler_options=options)
    return compiled(inputs)


@pytest.mark.parametrize("case", joined(TAKEN), ids=lambda case: case.name)
def test_matches_numpy(case: Case) -> None:
    check(case, *run(cached_inputs(case)))


# CI has them in `tests/pallas_kernels/paged_attention/test_large.py`, with other implementations.
@pytest.mark.exhaustive
@pytest.mark.parametrize("case", LONG_CASES, ids=lambda case: case.name)
def test_long_contexts(case: Case) -> None:
    check(case, *run(cached_inputs(case), FAST))


@pytest.mark.parametrize("blocks", thinned([4, 1000], [1]))
def test_any_number_of_multiprocessors_gives_the_same(blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It decides into how many parts contexts are split."""
    monkeypatch.setattr(attention, "multiprocessors", lambda: blocks)
    case = Case("parts", ((1, 300), (1, 0), (1, 1000), (9, 60)), num_heads=6, sinks=True, dtype="bfloat16")
    check(case, *run(cached_inputs(case)))


def test_a_prepared_batch_has_the_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    case = replace(CASES[0], window=8)
    inputs = cached_inputs(case)
    heads = Heads(case.num_heads, case.num_kv_heads, case.head_size, "float32", frozenset({0, 8}))
    prepared = replace(inputs, batch=attention.triton_prepare(inputs.batch, heads))
    assert isinstance(prepared.batch, batch.GpuBatch)
    assert sorted(prepared.batch.plans) == [0, 8]
    monkeypatch.setattr(attention, "_make_plans", None)
    check(case, *run(prepared))


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (replace(CASES[0], kv_dtype="int8"), "a KV cache of int8; supported: bfloat16, float16, float32"),
        (replace(CASES[0], head_size=512), "heads of size 512; supported: up to 256"),
        (replace(CASES[0], kv_dtype="int8", scale_bytes=4), "scales per token and head"),
    ],
    ids=["int8", "head_size", "scales"],
)
def test_refusal_names_an_alternative(case: Case, message: str) -> None:
    with pytest.raises(NotImplementedError, match=f"'triton' does not support {message}. Choose implementation 'xla'"):
        jax.eval_shape(lambda inputs: inputs.call("triton", jnp.int32(0)), abstract_inputs(case))


def test_old_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimpleNamespace(compute_capability="7.5", device_kind="Tesla T4")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [device])
    monkeypatch.setattr(attention, "BACKEND", Backend(attention.triton_paged_attention))
    with pytest.raises(NotImplementedError, match=r"capability 8 or more; this is a Tesla T4\. Choose implementation"):
        jax.eval_shape(lambda inputs: inputs.call("triton", jnp.int32(0)), abstract_inputs(CASES[0]))
