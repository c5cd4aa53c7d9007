"""Which families are compared in which stack of layers: all in the scan, and in the loop where all are asked for."""

import os
from collections.abc import Collection, Mapping
from typing import Protocol

import pytest

from tests.thinned import EVERY_CASE

# Each of the first few brings much that is new, each of the others something.
COVERING = (
    "gemma3n", "gemma4", "gemma4-experts", "llama4", "nemotron_h", "opt-norms-behind-narrow", "qwen3_next",
    "deepseek_v2", "jamba", "gpt_oss", "phimoe", "gemma2", "lfm2", "gptj", "mpt-clip", "cwm", "hunyuan", "olmo3",
    "phi3-short", "stablelm-norms", "arctic", "falcon_h1", "qwen3_5", "lfm2-wide", "ministral3", "bloom",
    "falcon_mamba", "mamba", "falcon-7b", "zamba2", "zamba2-plain", "mistral4", "apertus1p5", "deepseek_v32",
    "mistral_large4", "dots3_note", "glm5_next", "deepseek_v4", "laguna", "minimax", "diffllama", "bert", "ctrl",
    "modernbert_decoder", "kimi_linear", "bailing_hybrid", "bitnet", "axk2", "hy_v4", "electra", "jetmoe",
    "longcat_flash", "minimax_m3", "qwen4_exp", "recurrent_gemma", "rembert", "rwkv", "xlstm", "zamba",
)  # fmt: skip
"""Families that have, together, every choice that a layer plan or a configuration makes: see `every_family.choices`."""

EVERY_FAMILY = "JAXLLM_EVERY_FAMILY" in os.environ


class HasClass(Protocol):
    """A case of a table."""

    @property
    def name(self) -> str:
        """Of transformers' configuration, without `Config`."""
        ...


def compared(cases: Mapping[str, HasClass]) -> tuple[str, ...]:
    """Names of the cases whose logits are compared: those of `COVERING`, and the first of every other family.

    The others differ in options that `COVERING` has, too: `scripts/test --all` runs them.
    """
    there = {case.name for name, case in cases.items() if name in COVERING}
    few = {name for name in cases if name in COVERING}
    for name, case in cases.items():
        if case.name not in there:
            there.add(case.name)
            few.add(name)
    return tuple(name for name in cases if name in few or EVERY_CASE or EVERY_FAMILY)


def in_stacks(cases: Mapping[str, HasClass], soon: Collection[str] = COVERING) -> pytest.MarkDecorator:
    """`name` and `stack` of a test: the scans are slow but for those of `soon`, the loops all.

    The engines of `tests/e2e/test_families.py` have loops, whose tokens are those of transformers. Its families have
    every kind of cache and state in CI, and every choice in `scripts/test --all`: loops are compared here only where
    the environment has JAXLLM_EVERY_FAMILY.
    """
    slow = pytest.mark.slow
    params = []
    for name in compared(cases):
        params.append(pytest.param(name, "scan", marks=() if name in soon else slow))
        if EVERY_FAMILY:
            params.append(pytest.param(name, "loop", marks=slow))
    return pytest.mark.parametrize(("name", "stack"), params)
