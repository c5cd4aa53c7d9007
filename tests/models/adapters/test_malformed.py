"""Errors name the part of an adapter that is wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jaxllm.models.adapters.errors import AdapterError
from jaxllm.models.adapters.reading import read_adapter
from tests.models.adapters.small_adapter import Tensors, save, tensors
from tests.models.adapters.test_names import MODEL, NAMES, read

LAYER = "base_model.model.model.layers.1.self_attn.q_proj"


def with_tensors(**more: tuple[int, ...]) -> Tensors:
    """The tensors, and ones of these shapes, by their names' endings: a double underscore stands for a dot."""
    return tensors() | {
        f"base_model.model.{name.replace('__', '.')}": np.ones(shape, np.float32) for name, shape in more.items()
    }


def without(ending: str) -> Tensors:
    """The tensors but for those whose names end so."""
    return {name: each for name, each in tensors().items() if not name.endswith(ending)}


def changed(name: str, values: np.ndarray) -> Tensors:
    """The tensors, with another one under this name."""
    return tensors() | {name: values}


ZEROS = np.zeros
TENSORS: dict[str, tuple[Callable[[], Tensors], dict[str, Any], str]] = {
    "a module that is not there": (
        lambda: with_tensors(model__layers__1__self_attn__x_proj__lora_A__weight=(2, 16)),
        {},
        "no module 'model.layers.1.self_attn.x_proj'",
    ),
    "a layer that is not there": (
        lambda: with_tensors(model__layers__2__self_attn__q_proj__lora_A__weight=(2, 16)),
        {},
        "no module 'model.layers.2.self_attn.q_proj'",
    ),
    "A without B": (lambda: without("1.self_attn.q_proj.lora_B.weight"), {}, "q_proj.lora_A.weight' has no B"),
    "B without A": (lambda: without("0.mlp.down_proj.lora_A.weight"), {}, "down_proj.lora_B.weight' has no A"),
    "A of other inputs": (
        lambda: changed(f"{LAYER}.lora_A.weight", ZEROS((2, 17), np.float32)),
        {},
        r"q_proj.lora_A.weight' has shape \[2, 17\], expected \[2, 16\]",
    ),
    "B of other outputs": (
        lambda: changed(f"{LAYER}.lora_B.weight", ZEROS((8, 2), np.float32)),
        {},
        r"q_proj.lora_B.weight' has shape \[8, 2\], expected \[16, 2\]",
    ),
    "A and B of different rank": (
        lambda: changed(f"{LAYER}.lora_B.weight", ZEROS((16, 3), np.float32)),
        {},
        r"has shape \[16, 3\], expected \[16, 2\]",
    ),
    "a rank other than the configuration's": (tensors, {"r": 4}, "has rank 2, and .*adapter_config.json says 4"),
    "a pattern of another rank": (
        tensors,
        {"rank_pattern": {"layers.1.mlp.down_proj": 5}},
        "layers.1.mlp.down_proj.lora_A.weight' has rank 2, and .* says 5",
    ),
    "a tensor of one dimension, as of sharded training": (
        lambda: changed(f"{LAYER}.lora_A.weight", ZEROS(0, np.float32)),
        {},
        r"has shape \[0\], expected \[2, 16\]",
    ),
    "not a number": (
        lambda: changed(f"{LAYER}.lora_A.weight", np.full((2, 16), np.nan, np.float32)),
        {},
        "q_proj.lora_A.weight' has numbers that are not finite",
    ),
    "integers": (lambda: changed(f"{LAYER}.lora_A.weight", ZEROS((2, 16), np.int32)), {}, "has type I32"),
    "a module that the configuration does not mean": (
        tensors,
        {"target_modules": ["down_proj"]},
        "'model.layers.0.self_attn.q_proj'$",
    ),
    "a module without tensors": (
        tensors,
        {"target_modules": ["q_proj", "down_proj", "up_proj"]},
        "'model.layers.0.mlp.up_proj' has no tensors",
    ),
    "no tensors": (dict, {}, "no tensor is for this model"),
    "a name of no form": (
        lambda: with_tensors(model__layers__0__self_attn__q_proj__lora_C=(2, 2)),
        {},
        "lora_C' has a name that is none of an adapter's",
    ),
    "twice the same": (lambda: tensors() | tensors(infix=".default"), {}, "stands for the same as"),
    "routed experts": (
        lambda: with_tensors(model__layers__0__mlp__experts__base_layer__lora_A__weight=(16, 16)),
        {},
        "experts.base_layer.lora_A.weight' is for routed experts",
    ),
    "magnitudes without DoRA": (
        lambda: with_tensors(model__layers__0__self_attn__q_proj__lora_magnitude_vector=(16,)),
        {},
        "lora_magnitude_vector' is there, and .* does not set 'use_dora'",
    ),
    "DoRA without magnitudes": (tensors, {"use_dora": True}, "has no magnitude beside it, and 'use_dora' is set"),
    "a bias of B that is not set": (
        lambda: with_tensors(model__layers__0__self_attn__q_proj__lora_B__bias=(16,)),
        {},
        "lora_B.bias' is there, and .* does not set 'lora_bias'",
    ),
    "a bias that is not set": (
        lambda: with_tensors(model__layers__0__self_attn__q_proj__bias=(16,)),
        {},
        "q_proj.bias' stands in the place of the model's own, and in .* 'bias' is 'none'",
    ),
    "a bias that the model has not": (
        lambda: with_tensors(model__layers__0__self_attn__q_proj__base_layer__bias=(16,)),
        {"bias": "lora_only"},
        "has no place: this model has no tensor 'model.layers.0.self_attn.q_proj.bias'",
    ),
    "a module that is not saved": (
        lambda: with_tensors(model__layers__0__self_attn__v_proj__weight=(8, 16)),
        {},
        "v_proj.weight' stands in the place .* it is none of 'modules_to_save'",
    ),
    "a classifier that the model has not": (
        lambda: with_tensors(score__weight=(3, 16)),
        {"modules_to_save": ["score"]},
        "score.weight' has no place: this model has no module 'score'",
    ),
    "an embedding of more tokens": (
        lambda: with_tensors(model__embed_tokens__weight=(32, 16)),
        {},
        r"embed_tokens.weight' has shape \[32, 16\], expected \[24, 16\]",
    ),
    "a norm": (
        lambda: with_tensors(model__norm__lora_A__weight=(2, 16), model__norm__lora_B__weight=(16, 2)),
        {"target_modules": ["q_proj", "down_proj", "norm"]},
        "norm.lora_A.weight' has no place",
    ),
    "tokens that no field names": (
        lambda: with_tensors(model__embed_tokens__token_adapter__trainable_tokens_delta=(1, 16)),
        {},
        "names no 'trainable_token_indices'",
    ),
    "tokens beyond the vocabulary": (
        lambda: with_tensors(model__embed_tokens__token_adapter__trainable_tokens_delta=(1, 16)),
        {"trainable_token_indices": [24]},
        r"is for tokens \[24\]",
    ),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors(tmp_path: Path, name: str) -> None:
    values, fields, message = TENSORS[name]
    folder = save(tmp_path / "adapter", values(), **fields)
    with pytest.raises(AdapterError, match=message) as raised:
        read(folder)
    assert str(folder) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_rank_above_the_limit(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="has rank 2; at most 1 is taken"):
        read_adapter(save(tmp_path), MODEL, NAMES, max_rank=1)


def test_a_file_above_the_limit_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="bytes; at most 100 are read"):
        read_adapter(save(tmp_path), MODEL, NAMES, max_bytes=100)


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no configuration": (lambda folder: (folder / "adapter_config.json").unlink(), "adapter_config.json is not there"),
    "no weights": (lambda folder: (folder / "adapter_model.safetensors").unlink(), "none of adapter_model.safetensors"),
    "a broken configuration": (
        lambda folder: (folder / "adapter_config.json").write_text("{"),
        "adapter_config.json: invalid JSON",
    ),
    "a list for a configuration": (
        lambda folder: (folder / "adapter_config.json").write_text("[]"),
        "expected a JSON object",
    ),
    "truncated weights": (
        lambda folder: (folder / "adapter_model.safetensors").write_bytes(
            (folder / "adapter_model.safetensors").read_bytes()[:-8]
        ),
        "truncated",
    ),
    "weights that are none": (
        lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"version https://git-lfs"),
        "not a safetensors file",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files(tmp_path: Path, name: str) -> None:
    damage, message = FILES[name]
    folder = save(tmp_path / "adapter")
    damage(folder)
    with pytest.raises(AdapterError, match=message):
        read(folder)


class _Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path("executed").write_text, ("x",)


def test_a_pickle_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = save(tmp_path / "adapter")
    (folder / "adapter_model.safetensors").unlink()
    torch.save({f"{LAYER}.lora_A.weight": _Hostile()}, folder / "adapter_model.bin")
    with pytest.raises(AdapterError):
        read(folder)
    assert not Path("executed").exists()
