"""Models from inside and outside the tree."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from jaxllm.models import registry
from jaxllm.models.checkpoint import read_config
from jaxllm.models.config import ModelConfig, common_options
from jaxllm.models.config_file import ConfigFile
from jaxllm.models.errors import ModelError
from jaxllm.models.family import Family
from tests.models import small


def read_mine(file: ConfigFile, architecture: str) -> ModelConfig:
    return ModelConfig(architecture=architecture, **common_options(file, max_positions=77))


MINE = Family(read_mine)


def test_unknown_architecture_names_the_nearest_and_all() -> None:
    with pytest.raises(ModelError) as error:
        registry.lookup("Qwen3MoeForCausalLM")
    assert str(error.value) == (
        "unknown architecture 'Qwen3MoeForCausalLM'; did you mean 'Qwen3ForCausalLM' or 'Qwen2ForCausalLM' or "
        "'MistralForCausalLM'? (known: LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)"
    )


def test_register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_FAMILIES", dict(registry._FAMILIES))
    registry.register("MyForCausalLM", MINE)
    assert registry.lookup("MyForCausalLM") is MINE
    assert "MyForCausalLM" in registry.known_architectures()
    config = {key: value for key, value in small.CONFIG.items() if key != "max_position_embeddings"}
    small.save(tmp_path, config={**config, "architectures": ["MyForCausalLM"]})
    assert read_config(tmp_path).max_position_embeddings == 77


def test_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    group = registry.ENTRY_POINTS
    entries = [
        EntryPoint("MyForCausalLM", "tests.models.test_registry:MINE", group),
        EntryPoint("BadForCausalLM", "tests.models.test_registry:read_mine", group),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    assert isinstance(registry.lookup("MyForCausalLM"), Family)
    assert "MyForCausalLM" in registry.known_architectures()
    with pytest.raises(ModelError, match=r"read_mine' for 'BadForCausalLM' is not a jaxllm Family"):
        registry.lookup("BadForCausalLM")
