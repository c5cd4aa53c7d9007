from typing import Any

import pytest

from jaxllm.config import PRESETS, EngineConfig, PresetOptions, option_fields
from jaxllm.errors import ConfigError

NAMES: list[str] = list(PRESETS)


def value(config: EngineConfig, name: str) -> Any:
    return next(getattr(getattr(config, section), name) for section, item in option_fields() if item.name == name)


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_is_a_set_of_options_that_differ_from_the_defaults(name: str) -> None:
    found = EngineConfig.from_options({"preset": name})
    assert {each: value(found, each) for each in PRESETS[name].options} == PRESETS[name].options
    assert all(value(EngineConfig(), each) != setting for each, setting in PRESETS[name].options.items())


@pytest.mark.parametrize("name", NAMES)
def test_what_is_given_wins(name: str) -> None:
    given = {"max_num_seqs": 33, "max_num_batched_tokens": None}
    found = EngineConfig.from_options({"preset": name, **given})
    assert {each: value(found, each) for each in given} == given


def test_no_preset_changes_nothing() -> None:
    assert EngineConfig.from_options({"preset": None}) == EngineConfig.from_options({}) == EngineConfig()


def test_an_unknown_preset_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"preset='latencies': choose one of 'latency', .*did you mean 'latency'"):
        EngineConfig.from_options({"preset": "latencies"})
    with pytest.raises(ConfigError, match="preset"):
        PresetOptions(preset="fast")  # type: ignore[arg-type]
