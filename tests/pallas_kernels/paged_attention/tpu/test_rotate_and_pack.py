"""Queries, keys and values of one product, rotated and packed on the way: interpreted, against what XLA does."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from jaxllm.models.layers.rope import rotate
from jaxllm.pallas_kernels.linear import Norm
from jaxllm.pallas_kernels.paged_attention import HeadNorms
from jaxllm.pallas_kernels.paged_attention.cases import Case, Inputs, tolerance
from jaxllm.pallas_kernels.paged_attention.inputs import LAYER
from jaxllm.pallas_kernels.paged_attention.shared_rows import SharedRows
from jaxllm.pallas_kernels.paged_attention.tpu.attention import tpu_merged_attention
from jaxllm.pallas_kernels.paged_attention.tpu.canonical import from_canonical, packs_alike, to_canonical
from jaxllm.pallas_kernels.paged_attention.tpu.layout import Dims, pack_kv, pack_q
from jaxllm.pallas_kernels.paged_attention.tpu.rotate_and_pack import rotate_and_pack
from jaxllm.pallas_kernels.paged_attention.tpu.unpack import unpack
from jaxllm.pallas_kernels.ragged_batch import quantise
from tests.pallas_kernels.paged_attention.oracle import cached_inputs, run_function
from tests.pallas_kernels.paged_attention.tpu.interpreter import check_races, interpreted
from tests.quick import QUICK

Rotation = tuple[jax.Array, jax.Array]


def _few_bits(rng: np.random.Generator, *shape: int) -> jax.Array:
    """Float32 with the bits of bfloat16: products are exact, so that it does not matter whether they are rounded."""
    return jnp.asarray(rng.normal(size=shape), jnp.bfloat16).astype(jnp.float32)


@pytest.mark.parametrize(
    ("tokens", "heads", "kv_heads", "dtype", "stored"),
    [
        (1, 4, 2, "bfloat16", "bfloat16"),
        (72, 3, 1, "bfloat16", "bfloat16"),
        (8, 2, 2, "bfloat16", "float32"),
        (40, 3, 3, "float32", "bfloat16"),
        (16, 4, 1, "float32", "float32"),
    ],
)
def test_is_what_xla_rotates_and_packs(tokens: int, heads: int, kv_heads: int, dtype: str, stored: str) -> None:
    rng = np.random.default_rng(0)
    qkv = _few_bits(rng, tokens, (heads + 2 * kv_heads) * 128)
    # The first key and the last value.
    qkv = qkv.at[0, heads * 128].set(jnp.nan).at[tokens - 1, -1].set(-jnp.inf).astype(dtype)
    rotation = _few_bits(rng, tokens, 64), _few_bits(rng, tokens, 64)
    dims = Dims.of(SharedRows(kv_heads, heads // kv_heads, 128), 16, dtype, stored)

    def apart(qkv: jax.Array, rotation: Rotation) -> tuple[jax.Array, jax.Array]:
        query, key, value = jnp.split(qkv.reshape(tokens, -1, 128), [heads, heads + kv_heads], axis=1)
        key, value = (quantise(each, None, jnp.dtype(stored)) for each in (rotate(key, rotation), value))
        return pack_q(rotate(query, rotation), dims), pack_kv(key, value, dims)

    kernel = partial(rotate_and_pack, dims=dims, in_words=False, interpret=pltpu.InterpretParams())
    wanted, found = (jax.jit(each, compiler_options=QUICK)(qkv, rotation) for each in (apart, kernel))
    for one, other in zip(wanted, found, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one, np.float32), np.asarray(other, np.float32))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_heads_are_normalised_before(dtype: str) -> None:
    tokens, heads, kv_heads, rng = 8, 4, 2, np.random.default_rng(0)
    qkv = jnp.asarray(rng.normal(size=(tokens, (heads + 2 * kv_heads) * 128)), dtype)
    rotation = _few_bits(rng, tokens, 64), _few_bits(rng, tokens, 64)
    query, key = (jnp.asarray(rng.normal(size=128), dtype) for _ in range(2))
    norms = HeadNorms(query, key, 1e-3)
    dims = Dims.of(SharedRows(kv_heads, heads // kv_heads, 128), 16, dtype, dtype)

    def apart(qkv: jax.Array, rotation: Rotation) -> tuple[jax.Array, jax.Array]:
        query, key, value = jnp.split(qkv.reshape(tokens, -1, 128), [heads, heads + kv_heads], axis=1)
        query, key = Norm(norms.query, norms.epsilon)(query), Norm(norms.key, norms.epsilon)(key)
        return pack_q(rotate(query, rotation), dims), pack_kv(rotate(key, rotation), value, dims)

    kernel = partial(rotate_and_pack, dims=dims, in_words=False, norms=norms, interpret=pltpu.InterpretParams())
    wanted, found = (jax.jit(each, compiler_options=QUICK)(qkv, rotation) for each in (apart, kernel))
    for one, other in zip(wanted, found, strict=True):
        # A sum in another order may round a head's scale otherwise, and so all of its elements.
        scale = {"bfloat16": 2**-8, "float32": 1e-6}[dtype]
        np.testing.assert_allclose(np.asarray(one, np.float32), np.asarray(other, np.float32), rtol=0, atol=8 * scale)
        assert np.mean(np.asarray(one) != np.asarray(other)) < (0.05 if dtype == "bfloat16" else 1)


@pytest.mark.parametrize(("tokens", "heads", "kv_heads"), [(72, 3, 1), (8, 8, 2)])
def test_results_are_unpacked(tokens: int, heads: int, kv_heads: int) -> None:
    wanted = jnp.asarray(np.random.default_rng(0).normal(size=(tokens, heads, 128)), jnp.bfloat16)
    dims = Dims.of(SharedRows(kv_heads, heads // kv_heads, 128), 16, "bfloat16", "bfloat16")
    kernel = partial(unpack, dims=dims, interpret=pltpu.InterpretParams())
    found = jax.jit(kernel, compiler_options=QUICK)(pack_q(wanted, dims))
    np.testing.assert_array_equal(np.asarray(found, np.float32), np.asarray(wanted.reshape(tokens, -1), np.float32))


def test_self_tests_see_a_rotation_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = cached_inputs(Case("packed", ((1, 0), (7, 0)), head_size=128, dtype="bfloat16"))
    check = partial(packs_alike, interpret=pltpu.InterpretParams())
    assert jax.jit(check, compiler_options=QUICK)(inputs)
    monkeypatch.setattr(pltpu, "roll", lambda x, shift, axis: x)
    assert not jax.jit(partial(check), compiler_options=QUICK)(inputs)


def test_attention_rotates_on_the_way() -> None:
    rows = ((1, 5), (1, 33), (19, 3), (3, 29))
    case = Case("merged", rows, head_size=128, padding_tokens=2, dtype="bfloat16", sinks=True)
    inputs = cached_inputs(case)
    tokens, heads, kv_heads = len(inputs.q), case.num_heads, case.num_kv_heads
    rng = np.random.default_rng(0)
    rotation = _few_bits(rng, tokens, 64), _few_bits(rng, tokens, 64)
    turned = replace(inputs, q=rotate(inputs.q, rotation), k=rotate(inputs.k, rotation))
    wanted, wanted_cache = run_function("reference")(turned)
    qkv = jnp.concatenate([inputs.q, inputs.k, inputs.v], axis=1).reshape(tokens, (heads + 2 * kv_heads) * 128)

    def run(qkv: jax.Array, rotation: Rotation, inputs: Inputs) -> tuple[jax.Array, jax.Array]:
        cache = from_canonical(inputs.kv_cache, case)
        arrays = (qkv, rotation, cache, jnp.int32(LAYER), inputs.batch, inputs.options)
        out, cache = tpu_merged_attention(*arrays, **interpreted(case))
        return out.reshape(inputs.q.shape), to_canonical(cache, case)

    out, cache = jax.jit(run, compiler_options=QUICK)(qkv, rotation, inputs)
    check_races(out)
    found, asked = (np.asarray(each, np.float32)[: case.num_tokens] for each in (out, wanted))
    # Rotated keys and queries are longer than those of the other cases: the scores are.
    np.testing.assert_allclose(found, asked, rtol=0, atol=2 * tolerance(case))
    # Page 0 takes what is written for padding.
    found, asked = (np.asarray(each, np.float32)[:, 1:] for each in (cache, wanted_cache))
    np.testing.assert_allclose(found, asked, rtol=2**-8, atol=1e-6)
