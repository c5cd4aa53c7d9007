"""Adapters with each field of PEFT's configuration change the weights as PEFT's own merging does."""

from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers
from flax import nnx

from jaxllm.models import pooling_model
from jaxllm.models.adapters.adapter import Adapter
from jaxllm.models.adapters.merging import merge
from jaxllm.models.adapters.reading import read_adapter
from jaxllm.models.causal_lm import CausalLM, checkpoint_names, load_model
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.families import registry
from jaxllm.models.layers.projection import Outputs
from jaxllm.models.options import ForwardOptions
from jaxllm.models.pooling_model import PoolingModel, load_pooling_model
from tests.models.adapters.trained import save, train
from tests.models.every_family import FAMILIES
from tests.models.test_families import randomise
from tests.models.test_parity import SMALL

ATTENTION = ["q_proj", "v_proj"]
FIELDS: dict[str, dict[str, Any]] = {
    "rslora": {"use_rslora": True},
    "rank pattern": {"rank_pattern": {"q_proj": 2, "layers.1.mlp.up_proj": 7}},
    "alpha pattern": {"alpha_pattern": {r"layers\.0\..*k_proj": 3, "^model.layers.1.mlp.down_proj": 11}},
    "both patterns with rslora": {"rank_pattern": {"o_proj": 9}, "alpha_pattern": {".*o_proj": 5}, "use_rslora": True},
    "list": {"target_modules": ATTENTION},
    "expression": {"target_modules": r".*\.layers\.\d+\.(self_attn\.(q|k)_proj|mlp\.gate_proj)"},
    "all linear": {"target_modules": "all-linear"},
    "excluded by name": {
        "target_modules": "all-linear",
        "exclude_modules": ["down_proj", "model.layers.0.mlp.up_proj"],
    },
    "excluded by expression": {"target_modules": "all-linear", "exclude_modules": r".*\.mlp\..*"},
    "one layer": {"target_modules": ATTENTION, "layers_to_transform": 1},
    "layers": {"target_modules": ATTENTION, "layers_to_transform": [1, 5], "layers_pattern": "layers"},
    "biases of its layers": {"target_modules": ATTENTION, "bias": "lora_only"},
    "all biases": {"target_modules": ["o_proj", "k_proj"], "bias": "all"},
    "bias of B": {"lora_bias": True},
    "dora": {"use_dora": True},
    "dora with rslora": {"use_dora": True, "use_rslora": True, "rank_pattern": {"v_proj": 2}},
    "parameters": {"target_modules": ["up_proj"], "target_parameters": ["q_proj.weight"]},
    "output layer": {"target_modules": ["q_proj", "lm_head"]},
    "embedding": {"target_modules": ["q_proj", "embed_tokens"]},
    "saved output layer": {"target_modules": ATTENTION, "modules_to_save": ["lm_head"]},
    "saved embedding and norm": {"target_modules": ATTENTION, "modules_to_save": ["embed_tokens", "model.norm"]},
    "tokens": {"target_modules": ATTENTION, "trainable_token_indices": [3, 100, 7]},
    "tokens by name": {"target_modules": ATTENTION, "trainable_token_indices": {"embed_tokens": [5]}},
    "initialised otherwise": {"init_lora_weights": "orthogonal", "lora_dropout": 0.1},
}


def small_model(folder: Path, **options: Any) -> torch.nn.Module:
    """A Llama with biases."""
    config = transformers.LlamaConfig(**{**SMALL, "attention_bias": True, "mlp_bias": True, **options})
    model = transformers.LlamaForCausalLM(config).eval()
    randomise(model)
    model.save_pretrained(folder)
    return model


def loaded(folder: Path) -> CausalLM:
    """The model in a folder."""
    return load_model(Checkpoint(folder), read_config(folder), ForwardOptions(max_model_len=64), "float32")


def read(folder: Path, model: CausalLM, **options: Any) -> Adapter:
    """The adapter in a folder."""
    return read_adapter(folder, model, checkpoint_names(model.config, model.options), **options)


def arrays(model: nnx.Module) -> dict[Any, np.ndarray]:
    """Parameters by their paths."""
    return {path: np.asarray(value.get_raw_value()) for path, value in nnx.to_flat_state(nnx.state(model))}


def assert_same_weights(one: nnx.Module, other: nnx.Module) -> None:
    """Compare all parameters of two models."""
    wanted = arrays(other)
    for path, values in arrays(one).items():
        np.testing.assert_allclose(values, wanted[path], atol=2e-6, rtol=0, err_msg=str(path))


def save_merged(trained: peft.PeftModel, folder: Path, base: Path) -> None:
    """The checkpoint that PEFT makes of a model and its adapter."""
    merged = trained.merge_and_unload()
    merged.save_pretrained(folder)
    (folder / "config.json").write_text((base / "config.json").read_text())


@pytest.mark.parametrize("name", FIELDS)
def test_fields(tmp_path: Path, name: str) -> None:
    trained = train(small_model(tmp_path / "base"), **FIELDS[name])
    folder = save(trained, tmp_path / "adapter")
    base = loaded(tmp_path / "base")
    adapter = read(folder, base)
    save_merged(trained, tmp_path / "merged", tmp_path / "base")
    assert_same_weights(merge(base, adapter), loaded(tmp_path / "merged"))
    changed = [path for path, values in arrays(base).items() if (values != arrays(merge(base, adapter))[path]).any()]
    assert changed


def test_invocation_tokens(tmp_path: Path) -> None:
    options: dict[str, Any] = {"target_modules": ATTENTION, "alora_invocation_tokens": [3, 4]}
    folder = save(train(small_model(tmp_path / "base"), **options), tmp_path / "adapter")
    adapter = read(folder, loaded(tmp_path / "base"))
    assert adapter.config.invocation_tokens == (3, 4)
    assert len(adapter.low_rank) == 4


def test_one_product_for_a_whole_parameter(tmp_path: Path) -> None:
    folder = save(train(small_model(tmp_path / "base")), tmp_path / "adapter")
    model = loaded(tmp_path / "base")
    adapter, weights = read(folder, model), arrays(model)
    for path, layer in adapter.changed:
        shape = weights[path].shape if layer is None else weights[path].shape[1:]
        a, b = adapter.joined(path, layer, shape[0])
        np.testing.assert_allclose(b @ a, adapter.delta(path, layer, shape), atol=1e-6)
        assert len(a) == 4 * len(adapter.parts(path, layer))


def test_parts_of_a_fused_matrix_have_one_a(tmp_path: Path) -> None:
    model = FAMILIES["phi3"].save(tmp_path / "base")
    folder = save(train(model), tmp_path / "adapter")
    base = loaded(tmp_path / "base")
    adapter, weights = read(folder, base), arrays(base)
    assert {len(adapter.parts(*key)) for key in adapter.changed} == {1, 2, 3}
    for path, layer in adapter.changed:
        shape = weights[path].shape if layer is None else weights[path].shape[1:]
        a, b = adapter.joined(path, layer, shape[0])
        assert a.shape == (4, shape[1])
        np.testing.assert_allclose(b @ a, adapter.delta(path, layer, shape), atol=1e-6)


def test_a_classifier(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(**SMALL, num_labels=3)
    model = transformers.LlamaForSequenceClassification(config).eval()
    randomise(model)
    model.save_pretrained(tmp_path / "base")
    trained = train(model, task_type="SEQ_CLS", target_modules=["q_proj", "up_proj"])
    folder = save(trained, tmp_path / "adapter")
    save_merged(trained, tmp_path / "merged", tmp_path / "base")

    def classifier(folder: Path) -> PoolingModel:
        options, outputs = ForwardOptions(max_model_len=64), Outputs(labels=3)
        return load_pooling_model(Checkpoint(folder), read_config(folder), options, "float32", outputs)

    base = classifier(tmp_path / "base")
    family = registry.lookup(base.config.architecture)
    adapter = read_adapter(folder, base, pooling_model.checkpoint_names(family, base.config, Outputs(labels=3)))
    assert [each.target.path for each in adapter.replaced] == [("head", "out", "weight")]
    assert_same_weights(merge(base, adapter), classifier(tmp_path / "merged"))
