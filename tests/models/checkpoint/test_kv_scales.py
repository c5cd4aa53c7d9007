"""Scales of keys and values from a checkpoint, through the engine, and what is wrong with some."""

import json
import shutil
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.executor.devices import split_over
from jaxllm.executor.resolve import resolve_config
from jaxllm.models.cache import Cache
from jaxllm.models.causal_lm import load_model
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.kv_scales import has_kv_scales, kv_cache_scheme, read_kv_scales
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.errors import ModelError
from jaxllm.models.kv_type import KVCacheType
from jaxllm.models.options import ForwardOptions
from tests.models.paged import NUM_PAGES, PAGE_SIZE, compiled_step, make_batch, shuffled_pages

LAYERS = 4
GOOD = {"k_scale": 0.05, "v_scale": 0.04}


@pytest.fixture
def folder(tmp_path: Path, demo_folder: Path) -> Path:
    for name in ("config.json", "model.safetensors"):
        shutil.copy(demo_folder / name, tmp_path)
    return tmp_path


def add(
    folder: Path, scales: dict[str, float], name: str = "model.layers.{}.self_attn.{}", *, layers: int = LAYERS
) -> None:
    path = folder / "model.safetensors"
    more = {
        name.format(layer, which): np.array([value], np.float32)
        for layer in range(layers)
        for which, value in scales.items()
    }
    save_file(load_file(path) | more, path)


@pytest.mark.parametrize(
    ("name", "scales"),
    [
        ("model.layers.{}.self_attn.{}", GOOD),
        ("model.layers.{}.self_attn.attn.{}", GOOD),
        ("model.layers.{}.self_attn.{}", {"k_proj.k_scale": 0.05, "v_proj.v_scale": 0.04}),
        ("model.layers.{}.self_attn.{}", {"k_proj.output_scale": 0.05, "v_proj.output_scale": 0.04}),
    ],
)
def test_names(folder: Path, name: str, scales: dict[str, float]) -> None:
    assert not has_kv_scales(Checkpoint(folder))
    add(folder, scales, name)
    assert has_kv_scales(Checkpoint(folder))
    found = read_kv_scales(Checkpoint(folder), range(LAYERS))
    assert all(each == pytest.approx([0.05, 0.04]) for each in found.values())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0, -1.0])
def test_values_that_are_no_scales(folder: Path, bad: float) -> None:
    add(folder, GOOD | {"v_scale": bad})
    with pytest.raises(ModelError, match=r"'model.layers.0.self_attn.v_scale' is .*finite and greater than 0"):
        read_kv_scales(Checkpoint(folder), range(LAYERS))


def test_a_layer_without_scales(folder: Path) -> None:
    add(folder, GOOD, layers=LAYERS - 1)
    with pytest.raises(ModelError, match="'k_scale' of layer 3 is missing"):
        read_kv_scales(Checkpoint(folder), range(LAYERS))


@pytest.mark.parametrize(
    ("scheme", "kind"),
    [
        ({"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}, "fp8_e4m3"),
        ({"num_bits": 8, "type": "int"}, "int8"),
    ],
)
def test_schemes(folder: Path, scheme: dict[str, object], kind: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"kv_cache_scheme": scheme}}))
    assert kv_cache_scheme(folder) == kind


@pytest.mark.parametrize(
    ("field", "value"), [("num_bits", 4), ("type", "nf"), ("strategy", "channel"), ("dynamic", True)]
)
def test_schemes_that_are_refused(folder: Path, field: str, value: object) -> None:
    scheme = {"num_bits": 8, "type": "float", field: value}
    (folder / "config.json").write_text(json.dumps({"quantization_config": {"kv_cache_scheme": scheme}}))
    with pytest.raises(ModelError, match=field):
        kv_cache_scheme(folder)


@pytest.mark.slow
@pytest.mark.parametrize(("stack", "devices"), [("loop", 1), ("scan", 1), ("loop", 2)])
def test_keys_and_values_are_stored_with_their_own_scales(
    folder: Path, stack: Literal["loop", "scan"], devices: int
) -> None:
    """Those of the first layer, which no other quantisation has changed, and what saturates saturates."""
    add(folder, GOOD)
    config, prompt = read_config(folder), list(range(3, 40))
    mesh = split_over(config, jax.devices(), devices, absent=False) if devices > 1 else None
    caches = []
    for kind in (None, KVCacheType("int8", "checkpoint")):
        options = ForwardOptions(stack=stack, max_model_len=64, mesh=mesh, kv_cache=kind)
        model = load_model(Checkpoint(folder), config, options, "float32")
        state, step = compiled_step(model)
        dtype = "float32" if kind is None else kind.dtype
        shape = model.layout.array(config, layers=LAYERS, pages=NUM_PAGES, page_size=PAGE_SIZE)
        empty = Cache((jnp.zeros(shape, dtype),))
        _, cache = step(state, make_batch([prompt], [0], shuffled_pages(1), 64), empty)
        caches.append(np.asarray(cache.pages[0])[0, 1:])
    wide, narrow = caches
    wanted = np.stack([wide[:, 0] / np.float32(GOOD["k_scale"]), wide[:, 1] / np.float32(GOOD["v_scale"])], axis=1)
    assert np.abs(wanted).max() > 127
    np.testing.assert_allclose(narrow, np.clip(wanted, -128, 127), rtol=0, atol=0.51)


def test_types_that_are_resolved(folder: Path) -> None:
    def resolved(**options: str) -> object:
        return resolve_config(EngineConfig.from_options({"model": str(folder), **options})).kv_cache

    assert resolved() is None
    assert resolved(kv_cache_dtype="int8").scales == "dynamic"  # type: ignore[attr-defined]
    add(folder, GOOD)
    assert resolved() is None
    assert resolved(kv_cache_dtype="int8").scales == "checkpoint"  # type: ignore[attr-defined]
    assert resolved(kv_cache_dtype="fp8").scales == "checkpoint"  # type: ignore[attr-defined]
    assert resolved(kv_cache_dtype="fp8", load_format="dummy").scales == "none"  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="choose one of"):
        resolved(kv_cache_dtype="int4")
