"""Loading: every tensor in its place, and one precise error for everything that can be wrong."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file

from jaxllm.models.causal_lm import CausalLM, load_model
from jaxllm.models.checkpoint.find_model import find_model
from jaxllm.models.checkpoint.loading import open_weights
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.checkpoint.weight_files import INDEX_FILE, SINGLE_FILE
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.options import ForwardOptions
from tests.models import small

Kind = Literal["loop", "scan"]


def load(
    folder: Path,
    stack: Kind = "loop",
    dtype: str = "float32",
    *,
    config: ModelConfig = small.MODEL,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> CausalLM:
    return load_model(open_weights(folder, **options), config, ForwardOptions(stack=stack), dtype, progress)


def parameters(model: CausalLM) -> dict[str, np.ndarray]:
    """Our parameters by dotted path."""
    return {".".join(map(str, path)): np.asarray(value[...]) for path, value in nnx.to_flat_state(nnx.split(model)[1])}


@pytest.mark.parametrize("shards", [1, 3])
def test_every_tensor_arrives(tmp_path: Path, shards: int) -> None:
    folder = small.save(tmp_path) if shards == 1 else small.save_sharded(tmp_path, shards)
    values = small.tensors()
    loop, scan = parameters(load(folder)), parameters(load(folder, "scan"))
    merged = {
        "attention.query_key_value": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        "attention.output": ["self_attn.o_proj"],
        "mlp.gate_up": ["mlp.gate_proj", "mlp.up_proj"],
        "mlp.down": ["mlp.down_proj"],
    }
    for ours, theirs in merged.items():
        for layer in range(2):
            wanted = np.concatenate([values[f"model.layers.{layer}.{name}.weight"] for name in theirs])
            np.testing.assert_array_equal(loop[f"layers.each.{layer}.{ours}.weight"], wanted)
            np.testing.assert_array_equal(scan[f"layers.all.0:2:1.{ours}.weight"][layer], wanted)
    assert sum(array.size for array in loop.values()) == sum(value.size for value in values.values())
    np.testing.assert_array_equal(loop["head.weight"], values["lm_head.weight"])
    np.testing.assert_array_equal(scan["embedding.weight"], values["model.embed_tokens.weight"])


@pytest.mark.parametrize("source", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("target", ["float32", "bfloat16", "float16"])
def test_types_are_converted(tmp_path: Path, source: Any, target: str) -> None:
    values = {name: value.astype(source) for name, value in small.tensors().items()}
    model = load(small.save(tmp_path, values), dtype=target)
    for found in parameters(model).values():
        assert found.dtype == target
    np.testing.assert_array_equal(
        parameters(model)["embedding.weight"], values["model.embed_tokens.weight"].astype(np.dtype(target))
    )


def test_tensors_larger_than_a_chunk_are_converted_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxllm.models.checkpoint.safetensors_file.CHUNK_BYTES", 100)
    values = {name: value.astype(np.float16) for name, value in small.tensors().items()}
    model = load(small.save(tmp_path, values))
    np.testing.assert_array_equal(parameters(model)["head.weight"], values["lm_head.weight"].astype(np.float32))


def test_progress_counts_bytes(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    load(small.save(tmp_path), progress=lambda done, total: calls.append((done, total)))
    size = sum(value.nbytes for value in small.tensors().values())
    assert calls[-1] == (size, size)
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})


def test_known_extras_are_ignored(tmp_path: Path) -> None:
    inverse = {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": np.ones(2, np.float32) for layer in range(2)}
    folder = small.save(tmp_path, {**small.tensors(), **inverse})
    load(folder)
    tied = parameters(load(folder, config=_replace(tie_word_embeddings=True)))
    assert "head.weight" not in tied


def _replace(**changes: Any) -> ModelConfig:
    return dataclasses.replace(small.MODEL, **changes)


def _without(*names: str) -> dict[str, np.ndarray]:
    return {name: value for name, value in small.tensors().items() if name not in names}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (_without("model.norm.weight"), "1 tensor missing from the checkpoint: model.norm.weight"),
        (
            _without("lm_head.weight", "model.norm.weight"),
            "2 tensors missing from the checkpoint: lm_head.weight, model",
        ),
        (
            {**small.tensors(), "model.layers.0.self_attn.q_proj.bias": np.ones(16, np.float32)},
            "1 unexpected tensor in the checkpoint: model.layers.0.self_attn.q_proj.bias",
        ),
        (
            {**small.tensors(), "model.layers.1.mlp.up_proj.weight": np.ones((16, 20), np.float32)},
            "tensor 'model.layers.1.mlp.up_proj.weight' has shape [16, 20], expected [20, 16]",
        ),
        (
            {**small.tensors(), "lm_head.weight": np.ones((24, 16), np.int8)},
            "tensor 'lm_head.weight' has type I8, which cannot be read as a weight (known: F64, F32, F16, BF16)",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, values: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(ModelError) as error:
        load(small.save(tmp_path, values))
    assert message in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_many_missing_tensors_are_counted(tmp_path: Path) -> None:
    folder = small.save(tmp_path, {"model.norm.weight": np.ones(16, np.float32)})
    with pytest.raises(ModelError, match=r": 20 tensors missing .*: lm_head\.weight, \S+, \S+ and 17 more$"):
        load(folder)


def test_values_too_large_for_float16(tmp_path: Path) -> None:
    values = small.tensors() | {"model.norm.weight": np.full(16, 1e6, np.float32)}
    with pytest.raises(ModelError, match=r"'model\.norm\.weight' has values too large for float16; choose bfloat16"):
        load(small.save(tmp_path, values), dtype="float16")


def _rewrite_header(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "truncated: "),
        (lambda path: path.write_bytes(path.read_bytes()[:200]), "not a safetensors file, or truncated (200 bytes"),
        (lambda path: path.write_bytes(b"abc"), "not a safetensors file, or truncated (3 bytes"),
        (lambda path: path.write_bytes(b""), "not a safetensors file, or truncated (0 bytes"),
        (lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n" * 4), "not a safetensors file"),
        (lambda path: path.write_bytes((4).to_bytes(8, "little") + b"{{{{"), "corrupt safetensors header ("),
        (lambda path: path.write_bytes((2).to_bytes(8, "little") + b"\xff\xfe"), "corrupt safetensors header ("),
        (
            lambda path: path.write_bytes((2).to_bytes(8, "little") + b"[]"),
            "corrupt safetensors header (not an object)",
        ),
        (
            lambda path: _rewrite_header(path, lambda header: header["model.norm.weight"].pop("shape")),
            "corrupt safetensors header: bad entry for tensor 'model.norm.weight'",
        ),
        (
            lambda path: _rewrite_header(path, lambda header: header["model.norm.weight"].update(shape=[17])),
            "tensor 'model.norm.weight' of type F32 and shape [17] cannot take 64 bytes",
        ),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    path = small.save(tmp_path) / SINGLE_FILE
    damage(path)
    with pytest.raises(ModelError) as error:
        load(tmp_path)
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_no_weights(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has neither model\.safetensors nor model\.safetensors\.index\.json$"):
        load(tmp_path)


def test_a_hub_model_without_safetensors_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    # There is no hub here: this is what it would list, and what would be downloaded of it.
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    names = ["config.json", "old.pth", "onnx/model.safetensors"]
    monkeypatch.setattr(huggingface_hub, "list_repo_files", lambda *_, **__: names)
    with pytest.raises(ModelError, match=r"found old.pth.*save_pretrained"):
        find_model("somebody/old")
    assert find_model("somebody/old", weights=False) == tmp_path
    names.append("model.safetensors")
    assert find_model("somebody/old") == tmp_path


@pytest.mark.parametrize(
    ("names", "advice"),
    [
        (
            ["model.pt"],
            r"\(found model\.pt\): the only PyTorch files supported are pytorch_model\.bin.*save_pretrained",
        ),
        (["other.safetensors"], r"\(found other\.safetensors\): a single file must be named model\.safetensors"),
    ],
)
def test_weights_of_other_formats_say_what_to_do(tmp_path: Path, names: list[str], advice: str) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ModelError, match=advice):
        load(tmp_path)
    with pytest.raises(ModelError, match=advice):
        read_config(tmp_path)


def test_bad_index(tmp_path: Path) -> None:
    small.save_sharded(tmp_path, 3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelError, match=r"1 of 3 files are missing: model-00002-of-00003\.safetensors"):
        load(tmp_path)
    # No file can have the first name.
    for name in ("a" * 300, "a" * 5000, "\0"):
        (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
        with pytest.raises(ModelError, match=r"index\.json: 1 of 1 files are missing") as error:
            load(tmp_path)
        assert len(str(error.value)) < 300 + len(str(tmp_path))
    (tmp_path / INDEX_FILE).write_text('{"weight_map": {}}')
    with pytest.raises(ModelError, match="'weight_map' is missing or empty"):
        load(tmp_path)
    (tmp_path / INDEX_FILE).write_text('{"weight_map": ')
    with pytest.raises(ModelError, match="invalid JSON at line 1"):
        load(tmp_path)


def test_the_same_tensor_twice(tmp_path: Path) -> None:
    small.save_sharded(tmp_path, 2)
    save_file(small.tensors(), tmp_path / "model-00002-of-00002.safetensors")
    with pytest.raises(ModelError, match=r"is both in model-00001-of-00002\.safetensors and model-00002"):
        load(tmp_path)


def test_dummy_weights_depend_on_the_seed_only(tmp_path: Path) -> None:
    first, again, other = (parameters(load(tmp_path, load_format="dummy", seed=seed)) for seed in (1, 1, 2))
    scan = parameters(load(tmp_path, "scan", load_format="dummy", seed=1))
    name = "layers.each.1.mlp.down.weight"
    np.testing.assert_array_equal(first[name], again[name])
    np.testing.assert_array_equal(first[name], scan["layers.all.0:2:1.mlp.down.weight"][1])
    assert np.abs(first[name] - other[name]).max() > 0.1
    assert np.abs(first[name] - first["layers.each.0.mlp.down.weight"]).max() > 0.1
    np.testing.assert_array_equal(first["norm.weight"], 1.0)


def test_dummy_weights_are_well_spread(tmp_path: Path) -> None:
    config = _replace(vocab_size=4096, hidden_size=256, head_size=64)
    weight = parameters(load(tmp_path, load_format="dummy", config=config))["head.weight"]
    assert weight.std() == pytest.approx(256**-0.5, rel=0.01)
    assert abs(weight.mean()) < 1e-3
    assert np.abs(np.corrcoef(weight[:64])[~np.eye(64, dtype=bool)]).max() < 0.35
    counts, _ = np.histogram(weight, bins=64)
    expected = weight.size / 64
    assert ((counts - expected) ** 2 / expected).sum() < 110  # chi-squared, 63 degrees of freedom, p = 2e-4


def test_unknown_load_format(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="unknown load format 'npz'"):
        load(tmp_path, load_format="npz")


def test_loaded_arrays_live_on_the_device(tmp_path: Path) -> None:
    leaves = jax.tree.leaves(nnx.split(load(small.save(tmp_path)))[1])
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
