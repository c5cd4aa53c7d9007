"""Families split over devices gives transformers' logits: with fewer KV heads than devices, and experts on each."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch

from jaxllm.errors import ConfigError
from jaxllm.executor.devices import split_over
from jaxllm.models.causal_lm import load_model
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.options import ForwardOptions
from tests.models.every_family import FAMILIES, Family, covering
from tests.models.paged import compiled_step, run
from tests.thinned import thinned

LENGTH = 37
SOON = {"falcon-7b", "gpt_oss"}
"""Those of the fast part: one KV head for four devices; windows, sinks and experts with biases."""

EXPERTS = ("gpt_oss", "glm4_moe", "granitemoe-shared", "qwen3_moe")
"""Models with eight experts: biases, shared ones alongside them, several in one tensor, each in its own."""


def check(folder: Path, family: Family, devices: int, *, expert_parallel: bool = False, **options: Any) -> None:
    """Compare the logits of a prompt."""
    prompt = np.random.default_rng(1).integers(0, 90, LENGTH).tolist()
    model = family.save(folder, **options)
    with torch.no_grad():
        wanted = model(torch.tensor([prompt])).logits[0].numpy()
    config = read_config(folder)
    mesh = split_over(config, jax.devices(), devices, absent=False, expert_parallel=expert_parallel)
    forward = ForwardOptions(stack="scan", max_model_len=64, mesh=mesh, expert_parallel=expert_parallel)
    loaded = load_model(Checkpoint(folder), config, forward, "float32")
    (found,) = run(loaded, [prompt], [(LENGTH,)], LENGTH, compiled_step(loaded))
    # Where devices share the vocabulary, it is padded.
    np.testing.assert_allclose(found[:, : wanted.shape[1]], wanted, atol=1e-4, rtol=0)


def quick(name: str) -> Any:
    """The name, marked slow unless it is one of a few."""
    return name if name in SOON else pytest.param(name, marks=pytest.mark.slow)


FEW = (
    "bloom", "deepseek_v2", "deepseek_v4", "diffllama", "dots3_note", "falcon-7b", "falcon_h1", "gemma3n",
    "gemma4-experts", "glm5_next", "gpt_oss", "jamba", "kimi_linear", "lfm2", "llama4", "longcat_flash", "minimax",
    "minimax_m3", "phimoe", "qwen3_next", "qwen4_exp", "recurrent_gemma", "rwkv", "xlstm",
)  # fmt: skip
"""Families that have, together, every kind of attention, recurrence and experts that devices share."""


@pytest.mark.parametrize(
    "name", [quick(name) for name in thinned(FEW, (name for name in covering() if name not in FEW))]
)
def test_four_devices(tmp_path: Path, name: str) -> None:
    check(tmp_path, FAMILIES[name], 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", thinned(["opt-norms-behind-narrow", "falcon-40b"], ["gemma3", "granitemoe-shared"]))
def test_two_devices(tmp_path: Path, name: str) -> None:
    check(tmp_path, FAMILIES[name], 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", thinned(EXPERTS[:2], EXPERTS[2:]))
def test_experts_on_eight_devices(tmp_path: Path, name: str) -> None:
    check(tmp_path, FAMILIES[name], 8, expert_parallel=True, num_attention_heads=8)


@pytest.mark.parametrize(("name", "expert_parallel"), [("bloom-odd-heads", False), ("phimoe", True)])
def test_what_does_not_divide_is_an_error(tmp_path: Path, name: str, expert_parallel: bool) -> None:
    what = "6 experts" if expert_parallel else "6 query heads"
    message = f"tensor_parallel_size=4 cannot divide the model evenly: .*{what}.*sizes that work"
    with pytest.raises(ConfigError, match=message):
        check(tmp_path, FAMILIES[name], 4, expert_parallel=expert_parallel)
