"""Quantised copies: other libraries read the numbers that were rounded, and the model here is the one they make."""

import json
import resource
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.errors import ModelError
from jaxllm.models.quantization.compressed_scheme import FORMATS
from jaxllm.models.quantization.export import write_export
from jaxllm.models.quantization.export_plan import plan_export
from jaxllm.models.quantization.online import METHODS
from jaxllm.models.quantization.rounding import rounded
from tests.models.quantization.checkpoints import llama, qwen3_moe, round_activations
from tests.models.quantization.test_checkpoints import EXACT, PROMPT, ROUNDED, logits

FREE = namedtuple("FREE", "total used free")  # noqa: PYI024 - as shutil has it


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with biases; groups of 32 inputs are the largest that divide both of its sizes."""
    folder = tmp_path_factory.mktemp("plain")
    llama(num_hidden_layers=1, hidden_size=64, intermediate_size=160, attention_bias=True).save_pretrained(folder)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "pytorch_model.bin").write_bytes(b"the same again")
    (folder / "original").mkdir()
    return folder


@pytest.fixture
def copy(plain: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(plain, tmp_path / "plain"))


def changed(folder: Path, name: str, value: float) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors[name].view(-1)[5] = value
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def as_transformers_reads(folder: Path) -> torch.nn.Module:
    """The model that transformers makes of the folder with the functions of compressed-tensors."""
    config = transformers.CompressedTensorsConfig(dequantize=True)
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, quantization_config=config
    ).eval()


@pytest.mark.filterwarnings("ignore:You passed `quantization_config`")
@pytest.mark.parametrize(
    ("method", "shard_bytes"), [("int8", 30_000), ("int4", 10**9), ("fp8", 10**9), ("int8_w8a8", 10**9)]
)
def test_other_libraries_read_the_same_numbers(
    plain: Path, tmp_path: Path, method: str, shard_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[tuple[int, int]] = []
    plan = plan_export(plain, method)
    # What is copied goes in several pieces.
    monkeypatch.setattr("jaxllm.models.quantization.export.PIECE_BYTES", 1000)
    write_export(plan, tmp_path / "copy", lambda done, total: reports.append((done, total)), shard_bytes)
    assert reports[-1] == (plan.num_bytes, plan.num_bytes)

    files = {file.name for file in (tmp_path / "copy").iterdir()}
    weights = {name for name in files if name.endswith(".safetensors")}
    assert files - weights - {"model.safetensors.index.json"} == {
        "chat_template.jinja", "config.json", "generation_config.json"
    }  # fmt: skip
    assert (len(weights) > 3) == (shard_bytes < 10**6) == ("model.safetensors.index.json" in files)
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]

    model, kind = as_transformers_reads(tmp_path / "copy"), plan.tensors[0].scheme
    found, before = model.state_dict(), load_file(plain / "model.safetensors")
    assert found.keys() == before.keys()
    schemes = {each.tensor.name: each.scheme for each in plan.tensors}
    assert {name for name, scheme in schemes.items() if scheme} == {name for name in before if "_proj.weight" in name}
    for name, tensor in before.items():
        kind = schemes[name]
        wanted = tensor.numpy() if kind is None else rounded(tensor.numpy(), kind.kind).dequantized(np.float32)
        np.testing.assert_array_equal(found[name].numpy(), wanted, name)

    round_activations(model, dict(plan.config["quantization_config"]))
    with torch.no_grad():
        expected = model(torch.tensor([PROMPT])).logits[0].numpy()
    atol = ROUNDED if "w8a8" in method else EXACT
    np.testing.assert_allclose(logits(tmp_path / "copy")[:, : expected.shape[1]], expected, rtol=0, atol=atol)


def test_types_are_those_of_online_quantisation(plain: Path, tmp_path: Path) -> None:
    for method in ("int8", "fp8", "int8_w8a8"):
        write_export(plan_export(plain, method), tmp_path / method)
        (layer,) = read_config(tmp_path / method).layers
        types = dict(layer.weight_types)
        assert types["mlp.down"] == METHODS[method]
        with pytest.raises(ModelError, match="already quantized"):
            plan_export(tmp_path / method, "int4")


def test_values_without_a_type_keep_that_of_the_file(copy: Path) -> None:
    path = copy / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in values.items() if key not in ("dtype", "torch_dtype")}))
    assert plan_export(copy, "int8").config["torch_dtype"] == "float32"


def packed(folder: Path) -> None:
    """Put all experts into one tensor, as some checkpoints have them."""
    tensors = load_file(folder / "model.safetensors")
    experts = {name: tensors.pop(name) for name in list(tensors) if ".experts." in name}
    for layer in range(2):
        block = f"model.layers.{layer}.mlp.experts"
        of = [[experts[f"{block}.{e}.{part}_proj.weight"] for e in range(4)] for part in ("gate", "up", "down")]
        tensors[f"{block}.gate_up_proj"] = torch.cat([torch.stack(of[0]), torch.stack(of[1])], dim=1)
        tensors[f"{block}.down_proj"] = torch.stack(of[2])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.slow
@pytest.mark.parametrize("is_packed", [False, True])
def test_experts(tmp_path: Path, is_packed: bool) -> None:
    """Those that have a matrix each; routers never."""
    qwen3_moe().save_pretrained(tmp_path / "plain")
    if is_packed:
        packed(tmp_path / "plain")
    plan = plan_export(tmp_path / "plain", "int4")
    write_export(plan, tmp_path / "copy")
    routers = [f"model.layers.{layer}.mlp.gate" for layer in range(2)]
    others = [r"re:.*\.experts(\.|$)"] if is_packed else []
    assert plan.config["quantization_config"]["ignore"] == ["lm_head", *routers, *others]
    assert len(plan.left) == (24 if is_packed else 0)

    tensors = load_file(tmp_path / "plain" / "model.safetensors")
    for each in plan.tensors:
        if each.scheme is not None:
            matrix = rounded(tensors[each.tensor.name].numpy(), each.scheme.kind)
            tensors[each.tensor.name] = torch.from_numpy(matrix.dequantized(np.float32))
    save_file(tensors, tmp_path / "plain" / "model.safetensors", {"format": "pt"})
    np.testing.assert_allclose(logits(tmp_path / "copy"), logits(tmp_path / "plain"), rtol=0, atol=EXACT)


def test_experts_are_quantised_as_a_whole(tmp_path: Path) -> None:
    """Of these, 4 bits have groups for what goes into an expert, and none for what comes out of its first half."""
    qwen3_moe(moe_intermediate_size=24).save_pretrained(tmp_path)
    plan = plan_export(tmp_path, "int4")
    assert r"re:.*\.experts(\.|$)" in plan.config["quantization_config"]["ignore"]
    assert len(plan.left) == 24
    assert all(".experts." not in each.tensor.name for each in plan.tensors if each.scheme is not None)

    wide = plan_export(tmp_path, "int8")
    routers = [f"model.layers.{layer}.mlp.gate" for layer in range(2)]
    assert wide.config["quantization_config"]["ignore"] == ["lm_head", *routers]
    assert not wide.left


@pytest.mark.parametrize("method", FORMATS)
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_numbers_that_are_not_finite(copy: Path, tmp_path: Path, method: str, value: float) -> None:
    changed(copy, "model.layers.0.mlp.up_proj.weight", value)
    with pytest.raises(ModelError, match=r"'model.layers.0.mlp.up_proj.weight' has values that are not finite"):
        write_export(plan_export(copy, method), tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]


def test_a_tensor_that_is_missing(copy: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"1 tensor missing from the checkpoint: model.layers.0.mlp.up_proj.weight"):
        plan_export(copy, "int8")


def test_what_is_no_weight_is_copied(copy: Path, tmp_path: Path) -> None:
    """Tensors of types that are not read here, and whose values do not divide by those of others."""
    tensors = load_file(copy / "model.safetensors")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.tensor([True, False, True])
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    write_export(plan_export(copy, "int8"), tmp_path / "copy")
    with safe_open(tmp_path / "copy" / "model.safetensors", "pt") as file:
        assert file.get_tensor("model.layers.0.self_attn.rotary_emb.inv_freq").tolist() == [True, False, True]
        assert file.get_tensor("model.layers.0.mlp.up_proj.weight_shape").tolist() == [160, 64]


def test_a_folder_that_is_there_is_left_alone(plain: Path, tmp_path: Path) -> None:
    plan = plan_export(plain, "int8")
    (tmp_path / "empty").mkdir()
    write_export(plan, tmp_path / "empty")
    with pytest.raises(ModelError, match="empty: the folder is not empty; give a new one"):
        write_export(plan, tmp_path / "empty")
    with pytest.raises(ModelError, match="is a file"):
        write_export(plan, tmp_path / "empty" / "config.json")


def test_too_little_space(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: FREE(10**9, 10**9, 10))
    with pytest.raises(ModelError, match=r"the quantized weights take 0.0 GB, but only 0.0 GB are free"):
        write_export(plan_export(plain, "int8"), tmp_path / "copy")
    assert not list(tmp_path.iterdir())


def test_a_disk_that_refuses_on_the_way(plain: Path, tmp_path: Path) -> None:
    plan = plan_export(plain, "int8")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(ModelError, match=r"copy: cannot write it \(File too large\); partial output was removed"):
            write_export(plan, tmp_path / "copy")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_models_that_do_not_generate(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 40}
    transformers.BertModel(transformers.BertConfig(**sizes, intermediate_size=64)).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="BertModel is not a generative model"):
        plan_export(tmp_path, "int8")
