"""Quantised checkpoints: logits of the model that they stand for, whole and on several devices, and greedy tokens."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from jaxllm.errors import ConfigError
from jaxllm.executor.devices import split_over
from jaxllm.models.causal_lm import load_model
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.errors import ModelError
from jaxllm.models.options import ForwardOptions
from tests.e2e.driving import make_engine, request
from tests.e2e.driving import run as drive
from tests.models.paged import compiled_step, run
from tests.models.quantization.checkpoints import deepseek_v3, llama, qwen3_moe, save
from tests.models.quantization.formats import FORMATS, Format
from tests.models.quantization.test_formats import format_of
from tests.thinned import thinned

LENGTH = 21
PROMPT = np.random.default_rng(1).integers(0, 90, LENGTH).tolist()
EXACT, ROUNDED = 1e-4, 5e-2
"""How far logits may be off; where activations are rounded, one that is on the edge may go either way."""

SOON = {"int8 per tensor, static", "GPTQ desc_act"}
"""Formats of the fast part."""


def of_each_type() -> list[Any]:
    """Formats whose matrices are of different types, for which there are different programs."""
    names = {format_of(FORMATS[name]).kind: name for name in reversed(list(FORMATS))}
    return [name if name in SOON else pytest.param(name, marks=pytest.mark.slow) for name in sorted(names.values())]


def logits(folder: Path, devices: int = 1, **options: Any) -> np.ndarray:
    """Of all positions of the prompt, read in parts."""
    config = read_config(folder)
    mesh = split_over(config, jax.devices(), devices, absent=False, **options) if devices > 1 else None
    # The reference compiles in half the time.
    forward = ForwardOptions(stack="scan", attention="reference", max_model_len=64, mesh=mesh, **options)
    model = load_model(Checkpoint(folder), config, forward, "float32")
    (found,) = run(model, [PROMPT], [(13,), (1,), (7,)], 16, compiled_step(model))
    return found


def check(folder: Path, model: torch.nn.Module, form: Format, devices: int = 1, **options: Any) -> None:
    wanted = save(folder, model, form)
    with torch.no_grad():
        expected = wanted(torch.tensor([PROMPT])).logits[0].numpy()
    found = logits(folder, devices, **options)[:, : expected.shape[1]]
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDED if form.rounds_activations else EXACT)


@pytest.mark.parametrize("name", [*of_each_type(), pytest.param("NVFP4", marks=pytest.mark.slow)])
def test_logits(tmp_path: Path, name: str) -> None:
    check(tmp_path, llama(num_hidden_layers=1), FORMATS[name])


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        pytest.param(name, devices, marks=() if name == "W4A16 asymmetric" else pytest.mark.slow)
        for name, devices in thinned(
            [("W4A16 asymmetric", 4), ("GPTQ desc_act", 2), ("fp8 in blocks of uneven size", 4)],
            [("int8 per channel, per token", 4)],
        )
    ],
)
def test_logits_on_several_devices(tmp_path: Path, name: str, devices: int) -> None:
    """Also where groups, blocks and orders of inputs do not divide as devices do."""
    check(tmp_path, llama(), FORMATS[name], devices)


@pytest.mark.parametrize(
    ("make", "name", "devices", "options"),
    [
        (qwen3_moe, "W4A16 in groups", 1, {}),
        pytest.param(qwen3_moe, "GPTQ asymmetric", 2, {"expert_parallel": True}, marks=pytest.mark.slow),
        pytest.param(deepseek_v3, "fp8 in blocks", 2, {}, marks=pytest.mark.slow),
    ],
)
def test_logits_of_experts(tmp_path: Path, make: Any, name: str, devices: int, options: dict[str, Any]) -> None:
    check(tmp_path, make(), FORMATS[name], devices, **options)


def changed(folder: Path, name: str, change: Any) -> None:
    """Rewrite one tensor of a checkpoint."""
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = change(tensors[name])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def test_an_order_that_is_another_one_than_that_beside_it(tmp_path: Path) -> None:
    save(tmp_path, llama(), FORMATS["GPTQ desc_act"])
    changed(tmp_path, "model.layers.1.self_attn.k_proj.g_idx", lambda order: order.flip(0))
    with pytest.raises(ModelError, match=r"'model.layers.1.self_attn.\w_proj.weight': the order of its inputs differs"):
        logits(tmp_path)


def test_reordered_experts_are_not_shared_by_devices(tmp_path: Path) -> None:
    save(tmp_path, qwen3_moe(), FORMATS["GPTQ desc_act"])
    with pytest.raises(ConfigError, match=r"whose inputs are in another order; .* give --enable-expert-parallel"):
        logits(tmp_path, 2)


def test_a_matrix_that_the_configuration_has_otherwise(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.down_proj"
    save(tmp_path, llama(), FORMATS["int8 per channel, per token"], plain=["layers.0.mlp.down_proj"])
    with pytest.raises(ModelError, match=f"'{name}.weight' has type F32, but the configuration declares"):
        logits(tmp_path)


def test_a_matrix_of_another_size_than_the_model(tmp_path: Path) -> None:
    save(tmp_path, llama(), FORMATS["AWQ"])
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "intermediate_size": 128}))
    with pytest.raises(ModelError, match=r"down_proj.weight' has shape \[32, 64\], expected \[32, 128\]"):
        logits(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    thinned(["float8 per channel, per token", "AWQ"], ["NVFP4 of modelopt", "int8 per tensor, static", "fp8 static"]),
)
def test_greedy_tokens_through_the_engine(tmp_path: Path, name: str) -> None:
    """Chunked, batched, preempted, and again with what is in the prefix cache."""
    model = save(tmp_path, llama(), FORMATS[name])
    random = np.random.default_rng(2)
    prompts = [random.integers(0, 90, length).tolist() for length in (3, 17, 30)]
    engine = make_engine(
        model=str(tmp_path),
        dtype="float32",
        max_model_len=48,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        block_size=4,
        num_gpu_blocks_override=24,
    )
    params = {"temperature": 0, "max_tokens": 16, "ignore_eos": True}
    try:
        answers = drive(engine, [request(index, prompt, **params) for index, prompt in enumerate(prompts)])
        again = drive(engine, [request("again", prompts[-1], **params)])["again"]
        assert engine.scheduler.num_preemptions > 0
    finally:
        engine.close()
    assert again.num_cached_tokens > 0
    assert again.token_ids == answers["2"].token_ids
    for index, prompt in enumerate(prompts):
        answer = answers[str(index)].token_ids
        with torch.no_grad():
            found = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1].numpy()
        atol = ROUNDED if FORMATS[name].rounds_activations else EXACT
        np.testing.assert_allclose(found[np.arange(16), answer], found.max(axis=-1), atol=atol)
