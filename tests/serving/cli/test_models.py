import json
from pathlib import Path

import pytest

from jaxllm.models.families import registry
from jaxllm.serving.cli.main import main
from tests.models import small


def test_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    found = {each["architecture"]: each for each in json.loads(capsys.readouterr().out)}
    assert list(found) == registry.known_architectures()
    assert found["LlamaForCausalLM"]["use"] == "generate"
    assert found["LlamaForCausalLM"]["compared_with"] == "transformers"
    assert found["OrionForCausalLM"]["compared_with"] == "transformers' StableLm, which computes the same"
    assert found["LlamaForTokenClassification"]["compared_with"] == "transformers, as a generator"
    assert found["BertForTokenClassification"]["compared_with"] == "transformers"


def test_some_by_parts_of_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "gemma3", "ORION"]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split() == ["architecture", "gives", "compared", "with"]
    assert lines
    assert all(line.lower().startswith(("gemma3", "orion")) for line in lines)


def test_what_may_be_quantised_is_said_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    *_, checkpoints, loading = capsys.readouterr().out.splitlines()
    title, formats = checkpoints.split(": ")
    assert title == "quantized checkpoints"
    assert {"awq", "compressed-tensors", "fp8", "gguf", "gptq"} <= set(formats.split(", "))
    assert {"fp8", "int4", "int8"} <= set(loading.replace(",", "").split())


def test_none_of_that_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "nothing"]) == 2
    assert "no architecture has 'nothing' in its name" in capsys.readouterr().err


def test_what_a_configuration_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**small.CONFIG, "architectures": ["NovelForCausalLM"], "index_topk": 2048}))
    assert main(["models", "--missing", str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("NovelForCausalLM is not here.")
    assert "   - attention: index_topk = 2048" in lines
    # The headings of docs/add-a-model.md.
    assert [line[:2] for line in lines if line[:1].isdigit()] == ["1.", "2.", "3.", "4.", "5."]
    assert main(["models", "--missing", str(tmp_path), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["architecture"] == "NovelForCausalLM"
    assert told["unread"] == {"attention": {"index_topk": 2048}}
    small.save(tmp_path)
    assert main(["models", "--missing", str(path)]) == 0
    assert capsys.readouterr().out.startswith("nothing is missing: LlamaForCausalLM is here")
    assert main(["models", "llama", "--missing", str(path)]) == 2
    assert main(["models", "--missing", str(tmp_path / "model.safetensors")]) == 2
