"""Which cases an interpreter runs: each takes seconds to compile, so few that have every choice of all together."""

import os
from collections.abc import Sequence
from dataclasses import fields

from jaxllm.pallas_kernels.paged_attention.cases import CASES, Case

_NO_CHOICES = ("name", "seed", "layers", "prefix", "padding_tokens", "padding_rows", "k_scale", "v_scale")


READ_BY_CHIPS = tuple(case for case in CASES if not case.scale_bytes)
"""Without scales by token and head, which the kernels for TPUs and GPUs refuse."""


def covering(cases: Sequence[Case]) -> tuple[Case, ...]:
    """Cases that have every value of every field at least once; all, where the environment has JAXLLM_EVERY_CASE."""
    if "JAXLLM_EVERY_CASE" in os.environ:
        return tuple(cases)
    missing = set().union(*map(_choices, cases))
    found: list[Case] = []
    while missing:
        found.append(max(cases, key=lambda case: len(_choices(case) & missing)))
        missing -= _choices(found[-1])
    return tuple(found)


def _choices(case: Case) -> set[tuple[str, object]]:
    own = {(field.name, getattr(case, field.name)) for field in fields(case) if field.name not in _NO_CHOICES}
    derived = {
        ("query heads per KV head", case.num_heads // case.num_kv_heads),
        ("padding of tokens", case.padding_tokens > 0),
        ("padding of rows", case.padding_rows > 0),
        ("scales", (case.k_scale is not None, case.cache_dtype.name)),
    }
    return own | derived
