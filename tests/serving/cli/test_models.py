import json

import pytest

from jaxllm.models.families import registry
from jaxllm.serving.cli.main import main


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
    assert checkpoints.startswith(
        "quantized checkpoints: awq, bitsandbytes, compressed-tensors, fbgemm_fp8, fp8, gguf, gptq, "
    )
    assert {"fp8", "int4", "int8"} <= set(loading.replace(",", "").split())


def test_none_of_that_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "nothing"]) == 2
    assert "no architecture has 'nothing' in its name" in capsys.readouterr().err
