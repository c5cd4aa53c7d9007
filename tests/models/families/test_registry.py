"""Models from inside and outside the tree."""

import dataclasses
import re
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxllm.models.attention_plan import AttentionPlan
from jaxllm.models.causal_lm import load_model
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families import registry
from jaxllm.models.families.common import read_llama
from jaxllm.models.families.family import LLAMA_NAMES, Family
from jaxllm.models.forward_context import LayerContext
from jaxllm.models.layers.attention import Attention
from jaxllm.models.layers.mlp import GatedMLP
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.mlp_plan import MLPPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.plan import LayerPlan
from tests.models import small
from tests.models.paged import compiled_step, empty_cache, make_batch, shuffled_pages


def read_mine(file: ConfigFile, architecture: str) -> ModelConfig:
    return ModelConfig(architecture=architecture, **read_llama(file.reading(max_position_embeddings=77)))


MINE = Family(read_mine)


ADVICE = "`jaxllm models` lists all supported ones, and docs/add-a-model.md explains how to add one"


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ("Odd", f"Odd is not supported; {ADVICE}"),
        ("Model", f"Model is not supported; the nearest names are {{}}; {ADVICE}"),
        ("LamaForCausalLM", f"Lama is not supported; the nearest names are LlamaForCausalLM, {{}}; {ADVICE}"),
        (
            "BertForCausalLM",
            (
                "supported architectures of Bert are BertForMaskedLM, BertForSequenceClassification, "
                "BertForTokenClassification, BertLMHeadModel, BertModel"
            ),
        ),
    ],
)
def test_unknown_architectures_name_families(architecture: str, message: str) -> None:
    with pytest.raises(ModelError) as error:
        registry.lookup(architecture)
    wanted = re.escape(f"unknown architecture {architecture!r}: {message}").replace(r"\{\}", ".+")
    assert re.fullmatch(wanted, str(error.value))


def test_known_families() -> None:
    known = registry.known_families()
    assert {"Bert", "GPT2", "Llama", "Qwen3", "XLMRoberta"} <= set(known)
    assert known == sorted(known, key=str.lower)


def test_register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_FAMILIES", dict(registry._FAMILIES))
    registry.register("MyForCausalLM", MINE)
    assert registry.lookup("MyForCausalLM") is MINE
    assert "MyForCausalLM" in registry.known_architectures()
    config = {key: value for key, value in small.CONFIG.items() if key != "max_position_embeddings"}
    small.save(tmp_path, config={**config, "architectures": ["MyForCausalLM"]})
    assert read_config(tmp_path).max_position_embeddings == 77


class ParallelLayer(nnx.Module):
    """Attention and feed-forward side by side, as in docs/add-a-model.md."""

    def __init__(self, config: ModelConfig, plan: LayerPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        self.norm = make_norm(plan.attention_norm, config.hidden_size, dtype=dtype, options=options)
        assert isinstance(plan.attention, AttentionPlan)
        self.attention = Attention(config, plan.attention, options, dtype=dtype)
        assert isinstance(plan.mlp, MLPPlan)
        self.mlp = GatedMLP(config, plan.mlp, dtype=dtype, options=options)

    def __call__(self, x: jax.Array, kv_cache: jax.Array, context: LayerContext) -> tuple[jax.Array, jax.Array]:
        normed = self.norm(x)
        attended, kv_cache = self.attention(normed, kv_cache, context)
        return x + attended + self.mlp(normed, context.forward), kv_cache


@pytest.mark.parametrize("stack", ["loop", "scan"])
def test_a_family_with_its_own_layer_and_names(
    stack: Literal["loop", "scan"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {**LLAMA_NAMES, "layers.*.norm": "model.layers.*.ln"}
    family = Family(read_mine, ParallelLayer, names, ignored_tensors=("post_attention_layernorm.weight",))
    monkeypatch.setattr(registry, "_FAMILIES", {"MyForCausalLM": family})
    values = {name.replace("input_layernorm", "ln"): value for name, value in small.tensors().items()}
    small.save(tmp_path, values, {**small.CONFIG, "architectures": ["MyForCausalLM"]})
    model = load_model(
        Checkpoint(tmp_path), read_config(tmp_path), ForwardOptions(stack=stack, attention="reference"), "float32"
    )
    state, step = compiled_step(model)
    logits, _ = step(state, make_batch([[1, 2, 3]], [0], shuffled_pages(1), 4), empty_cache(model))
    assert logits.shape == (4, 24)

    # A layer adds what its blocks give, and nothing else: here nothing at all.
    silent = {
        name: value * (not name.endswith(("o_proj.weight", "down_proj.weight"))) for name, value in values.items()
    }
    small.save(tmp_path, silent, {**small.CONFIG, "architectures": ["MyForCausalLM"]})
    model = load_model(
        Checkpoint(tmp_path), read_config(tmp_path), ForwardOptions(stack=stack, attention="reference"), "float32"
    )
    state, step = compiled_step(model)
    logits, _ = step(state, make_batch([[1, 2, 3]], [0], shuffled_pages(1), 4), empty_cache(model))
    rows = values["model.embed_tokens.weight"][[1, 2, 3]].astype(np.float64)
    normed = rows / np.sqrt((rows**2).mean(axis=1, keepdims=True) + 1e-6) * values["model.norm.weight"]
    np.testing.assert_allclose(logits[:3], normed @ values["lm_head.weight"].T, rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(registry, "_FAMILIES", {"MyForCausalLM": dataclasses.replace(family, weight_names=LLAMA_NAMES)})
    with pytest.raises(ModelError, match=r"weight names lack module 'layers\.\*\.norm'"):
        load_model(Checkpoint(tmp_path), read_config(tmp_path), ForwardOptions(stack=stack), "float32")


def test_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    group = registry.ENTRY_POINTS
    entries = [
        EntryPoint("MyForCausalLM", "tests.models.families.test_registry:MINE", group),
        EntryPoint("BadForCausalLM", "tests.models.families.test_registry:read_mine", group),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    assert isinstance(registry.lookup("MyForCausalLM"), Family)
    assert "MyForCausalLM" in registry.known_architectures()
    with pytest.raises(ModelError, match=r"read_mine' for 'BadForCausalLM' is not a jaxllm Family"):
        registry.lookup("BadForCausalLM")
