"""The TPU kernels, interpreted, against the oracle, see `covering`."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.pallas_kernels.paged_attention.cases import CASES, Case
from jaxllm.pallas_kernels.paged_attention.inputs import LAYER
from tests.pallas_kernels.paged_attention.covering import READ_BY_CHIPS, joined
from tests.pallas_kernels.paged_attention.oracle import cached_inputs, check, without_writing
from tests.pallas_kernels.paged_attention.tpu.interpreter import interpret
from tests.thinned import thinned

FAST = ("decodes", "every_score", "int8_traced")
"""The cases that run with every test run; the others that run are slow tests."""

OTHERS = tuple(
    case for case in joined([case for case in READ_BY_CHIPS if case.most_short == 1]) if case.name not in FAST
)


@pytest.mark.parametrize(
    "case",
    [
        *(pytest.param(case, id=case.name) for case in CASES if case.name in FAST),
        *(pytest.param(case, id=case.name, marks=pytest.mark.slow) for case in OTHERS),
    ],
)
def test_matches_numpy(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    check(case, *interpret(cached_inputs(case), monkeypatch))


def test_scales_by_token_are_refused() -> None:
    case = next(case for case in CASES if case.scale_bytes)
    with pytest.raises(NotImplementedError, match="scales per token and head do not fit into rows of 128 lanes"):
        cached_inputs(case).call("tpu", jnp.int32(LAYER))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", thinned(["bfloat16"], ["float32"]))
def test_layers_read_what_an_earlier_one_has_written(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("read_again", ((1, 5), (1, 33), (7, 0), (3, 29)), head_size=128, window=40, dtype=dtype)
    inputs = cached_inputs(case)
    wanted, cache = interpret(inputs, monkeypatch)
    found, after = interpret(without_writing(inputs, cache), monkeypatch)
    np.testing.assert_array_equal(found[: case.num_tokens], wanted[: case.num_tokens])
    np.testing.assert_array_equal(after[:, 1:], cache[:, 1:])
