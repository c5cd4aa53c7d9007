"""`jaxllm quantize`, for real: what it writes is what the library unpacks, and what an engine computes with."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig
from safetensors.torch import load_file, save_file

import jaxllm
from jaxllm.models.checkpoint.find_model import find_model
from jaxllm.serving.cli.main import main
from tests.thinned import thinned


def unpacked(folder: Path) -> dict[str, torch.Tensor]:
    """The checkpoint as compressed-tensors' own functions unpack it."""
    section = json.loads((folder / "config.json").read_text())["quantization_config"]
    (scheme,) = QuantizationConfig.model_validate(section).config_groups.values()
    compressor = BaseCompressor.get_value_from_registry(section["format"])
    modules: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        module, _, ending = name.rpartition(".")
        modules.setdefault(module, {})[ending] = tensor
    return {
        f"{module}.weight": (compressor.decompress(own, scheme) if "weight_scale" in own else own)["weight"]
        for module, own in modules.items()
    }


@pytest.mark.parametrize(
    ("method", "error"), [("int8", 0.005), ("int4", 1 - 0.84 * 7 / 7.5 + 1e-6), ("fp8", 0.04), ("int8_w8a8", 0.005)]
)
def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str, error: float) -> None:
    """Rows are as near as types allow, besides their largest number, which 4 bits may cut to seven steps of a scale."""
    folder = tmp_path / "made" / "copy"
    assert main(["quantize", "demo", "--output", str(folder), "--quantization", method]) == 0
    assert f"{folder}: 28 matrices in {method}, " in capsys.readouterr().out
    before, after = load_file(find_model("demo") / "model.safetensors"), unpacked(folder)
    assert after.keys() == before.keys()
    for name, tensor in before.items():
        if "_proj" not in name:
            assert torch.equal(after[name], tensor)
            continue
        off = (after[name] - tensor).abs() / tensor.abs().amax(dim=1, keepdim=True)
        assert 0 < float(off.max()) < error
    assert main(["quantize", "demo", "--output", str(folder)]) == 2
    assert "the folder is not empty; give a new one, since nothing is overwritten" in capsys.readouterr().err


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", str(tmp_path / "none"), "--output", str(tmp_path / "copy")]) == 2
    assert "no such folder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["quantize", "demo", "--output", str(tmp_path / "copy"), "--quantization", "int3"])
    assert "--quantization" in capsys.readouterr().err


def test_the_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["quantize", "--help"])
    assert exit_info.value.code == 0
    assert "jaxllm quantize path/to/model --output model-int4 --quantization int4" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("method", thinned(["int4"], ["int8", "fp8"]))
def test_an_engine_answers_as_with_the_unpacked_numbers(tmp_path: Path, method: str) -> None:
    assert main(["quantize", "demo", "--output", str(tmp_path / "copy"), "--quantization", method]) == 0
    dense = tmp_path / "dense"
    dense.mkdir()
    save_file(unpacked(tmp_path / "copy"), dense / "model.safetensors", {"format": "pt"})
    for file in find_model("demo").iterdir():
        if file.suffix in (".json", ".jinja"):
            (dense / file.name).write_bytes(file.read_bytes())
    found, wanted = (_answers(folder) for folder in (tmp_path / "copy", dense))
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in wanted]
    for (_, ours), (_, theirs) in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def _answers(folder: Path) -> list[tuple[list[int], list[float]]]:
    """Greedy tokens and their log-probabilities."""
    options: dict[str, Any] = {
        "max_num_seqs": 2,
        "max_num_batched_tokens": 16,
        "max_model_len": 128,
        "optimization_level": 0,
    }
    params = jaxllm.SamplingParams(temperature=0, max_tokens=24, logprobs=1)
    with jaxllm.LLM(str(folder), dtype="float32", **options) as llm:
        outputs = [each.outputs[0] for each in llm.generate(["Once upon a time", "One rainy morning"], params)]
    return [
        (
            list(output.token_ids),
            [step[token].logprob for step, token in zip(output.logprobs or [], output.token_ids, strict=True)],
        )
        for output in outputs
    ]
