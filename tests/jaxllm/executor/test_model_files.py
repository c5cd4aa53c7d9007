"""Where models and tokenizers are found, with a hub cache on disk as the hub's own client makes it."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxllm.config import EngineConfig, ModelOptions, SchedulerOptions
from jaxllm.errors import ConfigError
from jaxllm.executor.model_files import model_folder, tokenizer_folder
from jaxllm.executor.resolve import resolve_config
from jaxllm.executor.step_size import StepSize
from jaxllm.models.errors import ModelError
from tests.jaxllm.planning.llama import write_model


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """A cache of the model `some/model` with the branches `main` and `old`."""
    model = tmp_path / "models--some--model"
    for commit, branch in (("a" * 40, "main"), ("b" * 40, "old")):
        folder = model / "snapshots" / commit
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"branch": branch}))
        (model / "refs").mkdir(exist_ok=True)
        (model / "refs" / branch).write_text(commit)
    return tmp_path


def branch_of(folder: Path) -> str:
    return str(json.loads((folder / "config.json").read_text())["branch"])


def test_a_revision_of_the_tokenizer(hub: Path) -> None:
    def of(**options: Any) -> ModelOptions:
        return ModelOptions(model="some/model", download_dir=str(hub), **options)

    assert branch_of(model_folder(of())) == "main"
    assert branch_of(tokenizer_folder(of(revision="old"))) == "old"
    assert branch_of(tokenizer_folder(of(tokenizer_revision="old", hf_token="hf_secret"))) == "old"
    assert branch_of(tokenizer_folder(of(tokenizer="some/model", tokenizer_revision="old"), hub)) == "old"
    assert tokenizer_folder(of(), hub) == hub
    with pytest.raises(ModelError, match="revision new"):
        tokenizer_folder(of(tokenizer_revision="new"))


def test_requests_as_long_as_the_smallest_window(tmp_path: Path) -> None:
    changes = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 128}
    options = {"model": write_model(tmp_path / "mistral", **changes), "disable_sliding_window": True}
    assert resolve_config(EngineConfig.from_options(options)).max_model_len == 128
    with pytest.raises(ConfigError, match=r"max_model_len=129: .* 128 tokens only"):
        resolve_config(EngineConfig.from_options({**options, "max_model_len": 129}))


def test_steps_smaller_than_the_options_that_size_them() -> None:
    usual = StepSize(64, 512)
    assert usual.chosen(SchedulerOptions(max_num_active_seqs=8, max_num_scheduled_tokens=100)) == StepSize(8, 100)
    assert usual.chosen(SchedulerOptions(max_num_seqs=4, max_num_active_seqs=8)) == StepSize(4, 512)
