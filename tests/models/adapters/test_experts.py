"""Adapters of routed experts give the logits of PEFT on transformers, in a slot and in the weights, in either form."""

import json
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
from safetensors.numpy import load_file, save_file

from jaxllm.models.adapters.errors import AdapterError
from jaxllm.models.adapters.expert_reading import ExpertLimit
from jaxllm.models.adapters.merging import merge
from jaxllm.models.adapters.reading import read_adapter
from jaxllm.models.causal_lm import checkpoint_names, load_model
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.options import ForwardOptions
from tests.models.adapters.test_slots import SHAPE, logits
from tests.models.adapters.trained import PROMPTS, save, train
from tests.models.every_family import FAMILIES
from tests.models.paged import compiled_step, run
from tests.models.test_parity import ONE_GO, TOKENS, expected_logits

ROUTED = replace(SHAPE, expert_rank=8, num_expert_slots=6)
PARAMETERS = ["gate_up_proj", "down_proj"]
SOON = ("gpt_oss", "llama4", "mixtral")
NAMES = ("deepseek_v3", "ernie4_5_moe", "gemma4-experts", "glm4_moe", "gpt_oss", "granitemoe", "lfm2_moe", "llama4",
         "minimax_m2", "mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe", "qwen3_next")  # fmt: skip


def merged_logits(folder: Path, adapter: Path) -> np.ndarray:
    """Those of the first prompt, with the adapter in the weights."""
    config = read_config(folder)
    loaded = load_model(Checkpoint(folder), config, ForwardOptions(max_model_len=64), "float32")
    merged = merge(loaded, read_adapter(adapter, loaded, checkpoint_names(config, loaded.options)))
    return run(merged, PROMPTS, ONE_GO, TOKENS, compiled_step(merged))[0]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SOON else pytest.mark.exhaustive) for name in NAMES]
)
def test_parameters_of_all_experts(tmp_path: Path, name: str) -> None:
    model = FAMILIES[name].save(tmp_path)
    base = expected_logits(model, PROMPTS[:1])[0]
    trained = train(model, spread=0.2, target_modules=["q_proj"], target_parameters=PARAMETERS)
    folder = save(trained, tmp_path / "adapter")
    expected = expected_logits(trained, PROMPTS[:1])[0]
    assert np.abs(expected - base).max() > 0.1
    stack = "scan" if name in ("mixtral", "gpt_oss") else "loop"
    np.testing.assert_allclose(logits(tmp_path, folder, stack, ROUTED), expected, atol=1e-4, rtol=0)
    np.testing.assert_allclose(merged_logits(tmp_path, folder), expected, atol=1e-4, rtol=0)
    merged = expected_logits(trained.merge_and_unload(), PROMPTS[:1])[0]
    np.testing.assert_allclose(merged_logits(tmp_path, folder), merged, atol=1e-4, rtol=0)


def write_modules(folder: Path, model: Path, only: int | None = None, **config: Any) -> Path:
    """An adapter with an A and a B for each layer of each expert of a checkpoint, or of one expert."""
    random, tensors = np.random.default_rng(2), {}
    for name, value in load_file(model / "model.safetensors").items():
        found = re.fullmatch(r"(.+\.experts\.(\d+)\.(\w+))\.weight", name)
        if found and (only is None or int(found[2]) == only):
            for half, shape in (("A", (4, value.shape[1])), ("B", (value.shape[0], 4))):
                tensors[f"base_model.model.{found[1]}.lora_{half}.weight"] = random.standard_normal(shape).astype(
                    np.float32
                ) * np.float32(0.2)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    modules = sorted({name.split(".")[-3] for name in tensors})
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 6, "target_modules": modules, "task_type": "CAUSAL_LM"}
    (folder / "adapter_config.json").write_text(json.dumps({**settings, **config}))
    return folder


@pytest.mark.parametrize("name", ["mixtral", pytest.param("qwen3_moe", marks=pytest.mark.exhaustive)])
def test_modules_of_each_expert(tmp_path: Path, name: str) -> None:
    model = FAMILIES[name].save(tmp_path)
    folder = write_modules(tmp_path / "adapter", tmp_path)
    with warnings.catch_warnings():
        # PEFT says that patterns of its own are for parameters, not modules.
        warnings.simplefilter("ignore")
        trained = peft.PeftModel.from_pretrained(model, folder).eval()
    expected = expected_logits(trained, PROMPTS[:1])[0]
    small = replace(ROUTED, expert_rank=4)
    found = logits(tmp_path, folder, "loop", small)
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)
    # PEFT has made two adapters of rank 4 one of rank 8, half of it zeros.
    again = save(trained, tmp_path / "again")
    assert json.loads((again / "adapter_config.json").read_text())["rank_pattern"]
    np.testing.assert_array_equal(logits(tmp_path, again, "loop", small), found)


def write_magnitudes(folder: Path, model: Path, changed: Path) -> Path:
    """Add magnitudes to the adapter in a folder, and write the model with it by the formula of DoRA.

    arXiv 2402.09353, equation 5: a row of the sum has the length of its magnitude.
    """
    random, tensors = np.random.default_rng(4), load_file(folder / "adapter_model.safetensors")
    weights = load_file(model / "model.safetensors")
    for name in [name for name in tensors if name.endswith(".lora_A.weight")]:
        module = name.removesuffix(".lora_A.weight")
        weight = f"{module.removeprefix('base_model.model.')}.weight"
        whole = weights[weight] + tensors[f"{module}.lora_B.weight"] @ tensors[name] * np.float32(1.5)
        length = np.linalg.norm(whole, axis=1)
        magnitude = (length * random.uniform(0.5, 1.5, len(length))).astype(np.float32)
        tensors[f"{module}.lora_magnitude_vector"] = magnitude
        weights[weight] = whole * (magnitude / length)[:, None]
    save_file(tensors, folder / "adapter_model.safetensors")
    changed.mkdir()
    (changed / "config.json").write_text((model / "config.json").read_text())
    save_file(weights, changed / "model.safetensors")
    return changed


def test_magnitudes_of_experts_are_merged(tmp_path: Path) -> None:
    """Those of parameters are refused, as PEFT has none."""
    FAMILIES["mixtral"].save(tmp_path)
    folder = write_modules(tmp_path / "adapter", tmp_path, use_dora=True)
    with pytest.raises(AdapterError, match=r"w[123].lora_A.weight' has no magnitude beside it, and 'use_dora' is set"):
        merged_logits(tmp_path, folder)
    changed = write_magnitudes(folder, tmp_path, tmp_path / "changed")
    config = read_config(changed)
    wanted = load_model(Checkpoint(changed), config, ForwardOptions(max_model_len=64), "float32")
    expected = run(wanted, PROMPTS, ONE_GO, TOKENS, compiled_step(wanted))[0]
    np.testing.assert_allclose(merged_logits(tmp_path, folder), expected, atol=1e-4, rtol=0)
    model = FAMILIES["mixtral"].save(tmp_path)
    stacked = save(train(model, target_modules=["q_proj"], target_parameters=PARAMETERS), tmp_path / "stacked")
    stray = {"base_model.model.model.layers.0.mlp.experts.lora_magnitude_vector": np.ones(64, np.float32)}
    save_file(load_file(stacked / "adapter_model.safetensors") | stray, stacked / "adapter_model.safetensors")
    with pytest.raises(AdapterError, match=r"experts.lora_magnitude_vector' is there, and .* does not set 'use_dora'"):
        merged_logits(tmp_path, stacked)
    settings = json.loads((stacked / "adapter_config.json").read_text())
    (stacked / "adapter_config.json").write_text(json.dumps({**settings, "use_dora": True}))
    with pytest.raises(AdapterError, match="no magnitudes and biases where one parameter has all of them"):
        merged_logits(tmp_path, stacked)


def read(folder: Path, adapter: Path, rank: int = 8) -> None:
    config = read_config(folder)
    loaded = load_model(Checkpoint(folder), config, ForwardOptions(max_model_len=64), "float32")
    read_adapter(adapter, loaded, checkpoint_names(config, loaded.options), experts=ExpertLimit(rank, "bfloat16"))


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    FAMILIES["mixtral"].save(tmp_path)
    folder = write_modules(tmp_path / "adapter", tmp_path)
    read(tmp_path, folder)
    # 2 layers of 6 experts of sizes 64 and 96, each with three pairs of matrices of 2 bytes.
    size = 2 * 6 * 4 * (64 + 96) * 3 * 2
    with pytest.raises(AdapterError, match=f"no slots here: --max-lora-expert-rank 4 would take {size} bytes"):
        read(tmp_path, folder, rank=0)
    with pytest.raises(AdapterError, match="have slots of rank 1 here"):
        read(tmp_path, folder, rank=1)
    with pytest.raises(AdapterError, match=r"'model.*experts.0.w1' has no tensors, and other experts' have some"):
        read(tmp_path, write_modules(tmp_path / "one", tmp_path, only=3))
    for field in ("use_dora", "lora_bias"):
        with pytest.raises(AdapterError, match=f"'{field}' is set: they have no magnitudes and biases in slots; serve"):
            read(tmp_path, write_modules(tmp_path / field, tmp_path, **{field: True}))
    with pytest.raises(AdapterError, match=r"expected \[6, 64\]|has shape"):
        read(tmp_path, write_modules(tmp_path / "six", tmp_path, r=6))
