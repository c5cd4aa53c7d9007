"""Logits equal those of transformers, for every family, rope variant and option, however the prompt is cut."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
import transformers

from jaxllm.models.causal_lm import load_model
from jaxllm.models.checkpoint import read_config
from jaxllm.models.options import ForwardOptions
from tests.models.paged import compiled_step, run

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
LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 5000.0},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {"rope_type": "llama3", "rope_theta": 500.0, **LLAMA3},
    "yarn": YARN,
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


def make_prompts() -> list[list[int]]:
    """Random prompts of `LENGTHS`."""
    random = np.random.default_rng(1)
    return [random.integers(0, SMALL["vocab_size"], length).tolist() for length in LENGTHS]


def check(folder: Path, model: torch.nn.Module, max_model_len: int = 64) -> float:
    """Compare both stacks, the prompts whole and in chunks, with transformers; returns the largest difference."""
    prompts = make_prompts()
    expected = expected_logits(model, prompts)
    config = read_config(folder)
    worst = 0.0
    kinds: tuple[Literal["loop", "scan"], ...] = ("loop", "scan")
    for kind in kinds:
        options = ForwardOptions(stack=kind, max_model_len=max_model_len)
        loaded = load_model(folder, config, options, "float32")
        step = compiled_step(loaded)
        for plan in (ONE_GO, CHUNKS):
            for found, wanted in zip(run(loaded, prompts, plan, TOKENS, step), expected, strict=True):
                np.testing.assert_allclose(found, wanted, atol=1e-4, rtol=0, err_msg=f"{kind} {plan}")
                worst = max(worst, float(np.abs(found - wanted).max()))
    return worst


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_rope(tmp_path: Path, family: str, rope: str, record_property: pytest.fixture) -> None:  # type: ignore[valid-type]
    model = save_checkpoint(tmp_path, family, rope_parameters=ROPES[rope])
    print(family, rope, check(tmp_path, model))
