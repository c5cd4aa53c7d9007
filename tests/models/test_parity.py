"""Logits equal those of transformers, for every family, rope variant and option, however the prompt is cut."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from jaxllm.models.causal_lm import load_model
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.options import ForwardOptions
from tests.models.paged import compiled_step, empty_cache, make_batch, run, shuffled_pages
from tests.thinned import thinned

LENGTHS = (37, 9)
TOKENS = 48
ONE_GO = [(37, 9)]
CHUNKS = [(5, 0), (1, 0), (13, 1), (1, 1), (17, 7)]
SMALL: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}
FAMILIES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
}
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 5000.0},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
}
ALTERNATING = ["full_attention", "sliding_attention", "full_attention"]
SLIDING = {"use_sliding_window": True, "sliding_window": 5, "num_hidden_layers": 3}
OPTIONS: dict[str, dict[str, Any]] = {
    "llama-tied-all-biases": {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    "llama-one-kv-head-wide-gelu": {"num_key_value_heads": 1, "head_dim": 32, "hidden_act": "gelu"},
    "mistral-window-no-groups": {"sliding_window": 5, "num_key_value_heads": 4},
    "mistral-window-wide-tied-llama3": {
        "sliding_window": 7,
        "head_dim": 32,
        "tie_word_embeddings": True,
        "rope_parameters": ROPES["llama3"],
    },
    "qwen2-upper-windows-tied": {**SLIDING, "max_window_layers": 1, "tie_word_embeddings": True},
    "qwen2-layer-types-yarn": {**SLIDING, "layer_types": ALTERNATING, "rope_parameters": ROPES["yarn"]},
    "qwen3-tied-biases-narrow": {"tie_word_embeddings": True, "attention_bias": True, "head_dim": 8},
    "qwen3-layer-types-linear": {
        **SLIDING,
        "layer_types": ALTERNATING,
        "head_dim": 16,
        "rope_parameters": ROPES["linear"],
    },
}


def save_checkpoint(folder: Path, family: str, **options: Any) -> torch.nn.Module:
    """A random model of the family in `folder`, with large enough weights that every option changes the logits."""
    config_class, model_class = FAMILIES[family]
    values = {**SMALL, **options}
    if values.get("rope_parameters") is not None:
        values["rope_parameters"] = {"rope_theta": 10000.0, **values["rope_parameters"]}
    torch.manual_seed(0)
    model = model_class(config_class(**values, attn_implementation="eager")).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            one = "norm" in name
            parameter.copy_(torch.randn_like(parameter) * (0.3 if one else 0.15) + (1.0 if one else 0.0))
    model.save_pretrained(folder)
    return model


def expected_logits(model: torch.nn.Module, prompts: list[list[int]]) -> list[np.ndarray]:
    """Logits [length, V] of every prompt by transformers, each alone."""
    with torch.no_grad():
        return [model(torch.tensor([prompt])).logits[0].numpy() for prompt in prompts]


def check(folder: Path, model: torch.nn.Module, lengths: tuple[int, ...] = LENGTHS, max_model_len: int = 64) -> None:
    """Compare both stacks, the prompts whole and in chunks, with transformers."""
    random = np.random.default_rng(1)
    prompts = [random.integers(0, SMALL["vocab_size"], length).tolist() for length in lengths]
    expected = expected_logits(model, prompts)
    # Logits far from zero and from each other, or agreement would mean little.
    assert min(wanted.std() for wanted in expected) > 0.5
    config = read_config(folder)
    kinds: tuple[Literal["loop", "scan"], ...] = ("loop", "scan")
    for kind in kinds:
        options = ForwardOptions(stack=kind, max_model_len=max_model_len)
        loaded = load_model(Checkpoint(folder), config, options, "float32")
        step = compiled_step(loaded)
        for plan in (ONE_GO, CHUNKS):
            cut = [counts[: len(lengths)] for counts in plan]
            for found, wanted in zip(run(loaded, prompts, cut, TOKENS, step), expected, strict=True):
                np.testing.assert_allclose(found, wanted, atol=1e-4, rtol=0, err_msg=f"{kind} {plan}")


# Rotations are the same code for every family: CI has each with one family, and each family with one.
OWN = dict(zip(FAMILIES, ("default", "linear", "llama3", "yarn"), strict=True))
PAIRS = [(family, rope) for family in FAMILIES for rope in ROPES]
FEW = [(family, rope) for family, rope in PAIRS if family == "llama" or rope == OWN[family]]


@pytest.mark.parametrize(("family", "rope"), thinned(FEW, [pair for pair in PAIRS if pair not in FEW]))
def test_rope(tmp_path: Path, family: str, rope: str) -> None:
    check(tmp_path, save_checkpoint(tmp_path, family, rope_parameters=ROPES[rope]))


@pytest.mark.parametrize("family", thinned(["llama"], [family for family in FAMILIES if family != "llama"]))
def test_dynamic_rope_of_a_text_as_long_as_max_model_len(tmp_path: Path, family: str) -> None:
    model = save_checkpoint(tmp_path, family, rope_parameters=ROPES["dynamic"], max_position_embeddings=16)
    check(tmp_path, model, lengths=(37,), max_model_len=37)


@pytest.mark.parametrize("case", OPTIONS)
def test_options(tmp_path: Path, case: str) -> None:
    check(tmp_path, save_checkpoint(tmp_path, case.partition("-")[0], **OPTIONS[case]))


def test_rotary_positions_apart_from_places_in_the_cache(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    model = save_checkpoint(tmp_path, "llama")
    prompt = random.integers(0, SMALL["vocab_size"], 20).tolist()
    # Several tokens at one position, as those of an image are, and gaps.
    positions = np.sort(random.integers(0, 60, len(prompt)))
    with torch.no_grad():
        expected = model(torch.tensor([prompt]), position_ids=torch.tensor(positions[None])).logits[0].numpy()
    assert np.abs(expected - expected_logits(model, [prompt])[0]).max() > 0.1
    loaded = load_model(Checkpoint(tmp_path), read_config(tmp_path), ForwardOptions(max_model_len=64), "float32")
    state, step = compiled_step(loaded)
    batch = make_batch([prompt], [0], shuffled_pages(1), len(prompt))
    batch = replace(batch, rotary_positions=jnp.asarray(positions, jnp.int32))
    found, _ = step(state, batch, empty_cache(loaded))
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)
