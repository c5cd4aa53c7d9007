"""The kernel for CPUs: the same bits for a token, however its prompt was cut and whoever is in the step with it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from jaxllm.pallas_kernels.cpu_common.processor import host_processor
from jaxllm.pallas_kernels.latent_attention.cases import CASES, Case, make_inputs, tolerance
from tests.pallas_kernels.cut_prompts import PREFIXES, SHARING_ROWS, TOKENS, check_cuts, check_shared_pages
from tests.pallas_kernels.latent_attention.oracle import cached_inputs, check, run_function
from tests.pallas_kernels.latent_attention.test_indexed import MIXED
from tests.pallas_kernels.latent_attention.test_indexed import oracle as indexed_oracle
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


ON_THIS_PROCESSOR = pytest.mark.skipif(
    not host_processor().multiplies_bfloat16, reason="the processor has no AVX512-BF16"
)


def _paired_cases() -> list[Case]:
    """Every case that the kernel can do, its types made bfloat16; those that become the same only once."""
    found: dict[Case, Case] = {}
    for case in CASES:
        if case.sizes.index == 0 and case.sizes.key % 32 == 0:
            own = replace(case, dtype="bfloat16")
            found.setdefault(replace(own, name=""), own)
    return list(found.values())


@ON_THIS_PROCESSOR
@pytest.mark.parametrize("case", _paired_cases(), ids=lambda case: case.name)
def test_pairs_match_numpy(case: Case) -> None:
    check(case, *run_function("cpu_pairs")(cached_inputs(case)))


@ON_THIS_PROCESSOR
def test_pairs_have_the_same_bits_however_cut_and_whoever_is_beside() -> None:
    rows = tuple((tokens, 0) for tokens in TOKENS)
    inputs = cached_inputs(Case("prompts", rows, num_heads=6, rope_size=32, dtype="bfloat16"))
    check_cuts(inputs, ("q_latent", "q_rope", "latent", "k_rope"), inputs.kv_cache, "cpu_pairs")


@ON_THIS_PROCESSOR
@settings(max_examples=4, derandomize=True)
@given(rows=SHARING_ROWS, prefix=PREFIXES)
def test_pairs_have_the_same_bits_beside_rows_of_the_same_pages(rows: list[tuple[int, int]], prefix: int) -> None:
    common = Case("alike", (), num_heads=6, page_size=48, rope_size=32, layers=2, dtype="bfloat16")
    check_shared_pages(common, rows, prefix, make_inputs, run_function("cpu_pairs"))


@ON_THIS_PROCESSOR
@pytest.mark.parametrize("implementation", ["cpu", "cpu_pairs"])
def test_chosen_keys_of_bfloat16(implementation: str) -> None:
    case = replace(MIXED, sinks=True, dtype="bfloat16")
    inputs = cached_inputs(case)
    out, cached = run_function(implementation)(inputs)
    wanted = indexed_oracle(inputs, np.asarray(cached).astype(np.float64))
    np.testing.assert_allclose(np.asarray(out, np.float64)[: case.num_tokens], wanted, atol=tolerance(case))


@ON_THIS_PROCESSOR
def test_keys_that_are_not_whole_vectors_of_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="pairs of bfloat16 of keys of 80: needs bfloat16 and a multiple of 32"):
        make_inputs(Case("odd", ((1, 5),), rope_size=16, dtype="bfloat16")).call("cpu_pairs")
