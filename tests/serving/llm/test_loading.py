"""A function may change the configuration, and options are read besides it."""

from pathlib import Path
from typing import Any

import pytest

from jaxllm.errors import ConfigError
from jaxllm.serving.llm.llm import LLM
from jaxllm.serving.llm.loading import called_overrides
from tests.jaxllm.planning.llama import write_model


def test_a_function_changes_the_configuration(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")

    def change(config: Any) -> Any:
        config.update({"rope_theta": 5.0, "extra": {"a": 1}})
        return config

    found = called_overrides(change, {"model": folder, "hf_overrides": change, "max_num_seqs": 3})
    assert found["extra"] == {"a": 1}
    assert "5.0" in str(found), "the place of rope_theta depends on the version"
    assert not {"hidden_size", "num_hidden_layers", "architectures"} & found.keys()
    assert called_overrides(lambda config: config, {"model": folder}) == {}
    with pytest.raises(ConfigError, match="the function returned NoneType"):
        called_overrides(lambda _: None, {"model": folder})
    with pytest.raises(ConfigError, match="no such folder"):
        called_overrides(change, {"model": str(tmp_path / "absent")})


def test_other_options_count_beside_a_function(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"rope_theta=-1\.0"):
        LLM(folder, hf_overrides=lambda config: config, rope_theta=-1, skip_tokenizer_init=True)
