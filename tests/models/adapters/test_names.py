"""Adapters under the names of the tools that people train with are the same adapter."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from jaxllm.models.adapters.adapter import Adapter
from jaxllm.models.adapters.errors import AdapterError
from jaxllm.models.adapters.reading import read_adapter
from jaxllm.models.causal_lm import abstract_model, checkpoint_names
from jaxllm.models.options import ForwardOptions
from jaxllm.models.stage import Stage
from tests.models import small
from tests.models.adapters.small_adapter import Tensors, save, tensors

MODEL = abstract_model(small.MODEL, ForwardOptions(max_model_len=64), "float32")
NAMES = checkpoint_names(small.MODEL, MODEL.options)
HEAD = (("A", (2, 16)), ("B", (24, 2)))
"""Shapes of an adapter of the output layer."""


def read(folder: Path) -> Adapter:
    """The adapter in a folder, for the small model."""
    return read_adapter(folder, MODEL, NAMES)


def assert_same(one: Adapter, other: Adapter) -> None:
    """Compare what two adapters do."""
    assert len(one.low_rank) == len(other.low_rank) > 0
    for ours, theirs in zip(one.low_rank, other.low_rank, strict=True):
        assert ours.key == theirs.key
        assert ours.module == theirs.module
        np.testing.assert_array_equal(ours.a, theirs.a)
        np.testing.assert_array_equal(ours.b, theirs.b)


RENAMED: dict[str, Callable[[], Tensors]] = {
    "without a prefix": lambda: tensors(""),
    "with PEFT's name of the adapter": lambda: tensors(infix=".default"),
    "with another name of the adapter": lambda: tensors(infix=".my-task_2"),
    "of the bare model": lambda: {
        name.replace("model.model.model.", "model.model."): each for name, each in tensors().items()
    },
    "of the language model of one that sees": lambda: tensors("base_model.model.language_model."),
    "of the language model inside": lambda: {
        name.replace("model.layers", "model.language_model.layers"): each for name, each in tensors().items()
    },
    "of a compiled model": lambda: tensors("base_model.model._orig_mod."),
    "of a sharded model": lambda: {
        name.replace("layers.0.", "layers.0._fsdp_wrapped_module."): each for name, each in tensors().items()
    },
    "of a parallel model": lambda: tensors("module.base_model.model."),
}


@pytest.mark.parametrize("name", RENAMED)
def test_prefixes(tmp_path: Path, name: str) -> None:
    values = RENAMED[name]()
    assert_same(read(save(tmp_path / "renamed", values)), read(save(tmp_path / "plain")))


def test_a_file_of_torch(tmp_path: Path) -> None:
    plain, other = save(tmp_path / "plain"), save(tmp_path / "other")
    (other / "adapter_model.safetensors").unlink()
    torch.save({name: torch.tensor(each) for name, each in tensors().items()}, other / "adapter_model.bin")
    assert_same(read(other), read(plain))


def write_mlx(folder: Path, *, kind: str = "lora", keys: list[str] | None = None) -> Path:
    """The adapter as mlx-lm writes it."""
    made = {}
    for name, each in tensors("").items():
        renamed = name.replace(".lora_A.weight", ".lora_a").replace(".lora_B.weight", ".lora_b")
        made[renamed] = np.ascontiguousarray(each.T)
    folder.mkdir()
    parameters = {"rank": 2, "scale": 3.0, "dropout": 0.0} | ({} if keys is None else {"keys": keys})
    config = {"fine_tune_type": kind, "lora_parameters": parameters, "num_layers": 2, "batch_size": 4, "model": "m"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(made, folder / "adapters.safetensors")
    return folder


def test_mlx(tmp_path: Path) -> None:
    keys = ["self_attn.q_proj", "mlp.down_proj"]
    assert_same(read(write_mlx(tmp_path / "mlx", keys=keys)), read(save(tmp_path / "plain")))


def test_mlx_full_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="'fine_tune_type' is 'full'"):
        read(write_mlx(tmp_path / "mlx", kind="full"))


def test_scaling_and_rounding(tmp_path: Path) -> None:
    exact = read(save(tmp_path))
    rounded = read_adapter(tmp_path, MODEL, NAMES, dtype=ml_dtypes.bfloat16)
    given = tensors()
    for each, short in zip(exact.low_rank, rounded.low_rank, strict=True):
        wanted = given[f"base_model.model.{each.module}.lora_B.weight"] * np.float32(3)
        if each.target.part is None:
            np.testing.assert_array_equal(each.b, wanted)
        assert short.a.dtype == short.b.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(short.b, each.b.astype(ml_dtypes.bfloat16))
    assert exact.digest == rounded.digest
    assert (exact.rank, exact.num_bytes) == (2, 2 * rounded.num_bytes)


def test_the_digest_is_of_the_contents(tmp_path: Path) -> None:
    one, same = read(save(tmp_path / "one")), read(save(tmp_path / "same"))
    values = tensors()
    next(iter(values.values()))[0, 0] += 1
    others = [save(tmp_path / "tensor", values), save(tmp_path / "field", lora_alpha=7)]
    assert one.digest == same.digest
    assert len({one.digest, *(read(folder).digest for folder in others)}) == 3


def test_tensors_of_other_parts_are_skipped(tmp_path: Path) -> None:
    names = replace(NAMES, ignored_beginnings=("vision_tower.", "model.vision_tower."))
    values = tensors()
    for half, shape in (("A", (2, 8)), ("B", (8, 2))):
        values[f"base_model.model.model.vision_tower.layers.0.q_proj.lora_{half}.weight"] = np.ones(shape, np.float32)
    adapter = read_adapter(save(tmp_path / "all", values), MODEL, names)
    assert adapter.skipped == ("model.vision_tower.layers.0.q_proj",)
    assert len(adapter.low_rank) == 4
    only = {name: each for name, each in values.items() if "vision" in name}
    with pytest.raises(AdapterError, match=r"no tensor is for this model; those of 'model.vision_tower"):
        read_adapter(save(tmp_path / "only", only), MODEL, names)


def test_a_stage_takes_its_own_layers(tmp_path: Path) -> None:
    folder = save(tmp_path)
    whole = read(folder)
    stages = [Stage(0, 1, 2), Stage(1, 2, 2)]
    adapters = []
    for stage in stages:
        model = abstract_model(small.MODEL, ForwardOptions(max_model_len=64, stage=stage), "float32")
        adapters.append(read_adapter(folder, model, checkpoint_names(small.MODEL, model.options)))
    modules = [[each.module for each in adapter.low_rank] for adapter in adapters]
    assert [*modules[0], *modules[1]] == [each.module for each in whole.low_rank]
    assert {adapter.digest for adapter in adapters} == {whole.digest}
    assert not any(adapter.skipped for adapter in adapters)


def test_modules_have_the_names_of_transformers_too(tmp_path: Path) -> None:
    """Where checkpoints call a part of the name otherwise."""
    values = {name.replace("mlp.down_proj", "feed.fc.down_proj"): each for name, each in tensors().items()}
    folder = save(tmp_path / "theirs", values)
    with pytest.raises(AdapterError, match=r"no module 'model.layers.0.feed.fc.down_proj'"):
        read(folder)
    found = read_adapter(folder, MODEL, replace(NAMES, synonyms={"feed.fc": "mlp"}))
    assert_same(found, read(save(tmp_path / "ours")))


@pytest.mark.parametrize("head", ["lm_head", "output_projection"])
def test_an_output_layer_that_is_the_embedding_has_no_adapter(tmp_path: Path, head: str) -> None:
    config = replace(small.MODEL, tie_word_embeddings=True)
    model = abstract_model(config, MODEL.options, "float32")
    names = replace(NAMES, names={**NAMES.names, "head": head})
    values = {f"base_model.model.{head}.lora_{half}.weight": np.ones(shape, np.float32) for half, shape in HEAD}
    folder = save(tmp_path, tensors() | values, target_modules=["q_proj", "down_proj", head])
    with pytest.raises(AdapterError, match=rf"{head}.lora_A.weight' is for an output layer, and this model's is its"):
        read_adapter(folder, model, names)


def test_what_maxtext_converts_is_read(tmp_path: Path) -> None:
    """Its script has the names of Hugging Face's weights, and writes few fields.

    See `save_adapter_files` in src/maxtext/checkpoint_conversion/utils/utils.py of AI-Hypercomputer/maxtext, August
    2026.
    """
    fields: dict[str, Any] = {"task_type": "CAUSAL_LM", "lora_dropout": 0.0, "bias": "none", "inference_mode": True}
    folder = save(tmp_path / "maxtext", base_model_name_or_path="Qwen/Qwen3-8B", lora_alpha=6.0, **fields)
    assert_same(read(folder), read(save(tmp_path / "plain")))


@pytest.mark.parametrize("end", ["query.lora_a.kernel", "query.kernel_lora_b", "q_einsum.w_lora_a"])
def test_names_of_maxtext_are_named(tmp_path: Path, end: str) -> None:
    values = {f"params.decoder.layers.self_attention.{end}": np.ones((16, 2, 2), np.float32)}
    with pytest.raises(AdapterError, match=rf"{end}' has a name of MaxText's or Tunix's; convert it with MaxText"):
        read(save(tmp_path, values))


@pytest.mark.parametrize("name", ["_CHECKPOINT_METADATA", "items", "0"])
def test_checkpoints_of_orbax_are_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(AdapterError, match=r"a checkpoint of Orbax, .*maxtext.checkpoint_conversion.to_huggingface"):
        read(tmp_path)
