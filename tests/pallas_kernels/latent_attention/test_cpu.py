"""The kernel for CPUs: the same bits for a token, however its prompt was cut and whoever is in the step with it."""

import pytest
from hypothesis import given, settings

from jaxllm.pallas_kernels.latent_attention.cases import Case, make_inputs
from tests.pallas_kernels.cut_prompts import PREFIXES, SHARING_ROWS, TOKENS, check_cuts, check_shared_pages
from tests.pallas_kernels.latent_attention.oracle import cached_inputs, run_function
from tests.thinned import EVERY_CASE


@pytest.mark.parametrize(("heads", "dtype"), [(6, "float32"), (32, "bfloat16")])
def test_the_same_bits_however_cut_and_whoever_is_beside(heads: int, dtype: str) -> None:
    rows = tuple((tokens, 0) for tokens in TOKENS)
    inputs = cached_inputs(Case("prompts", rows, num_heads=heads, rope_size=16, dtype=dtype))
    check_cuts(inputs, ("q_latent", "q_rope", "latent", "k_rope"), inputs.kv_cache)


@settings(max_examples=12 if EVERY_CASE else 6, derandomize=True)
@given(rows=SHARING_ROWS, prefix=PREFIXES)
def test_the_same_bits_beside_rows_of_the_same_pages(rows: list[tuple[int, int]], prefix: int) -> None:
    common = Case("alike", (), num_heads=6, page_size=48, layers=2)
    check_shared_pages(common, rows, prefix, make_inputs, run_function("cpu"))


def test_sizes_that_are_not_whole_vectors_are_refused() -> None:
    with pytest.raises(ValueError, match="not 64, 24, 16 and float32"):
        make_inputs(Case("odd", ((1, 5),), rope_size=24)).call("cpu")
