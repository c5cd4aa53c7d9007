"""Values in place of those of config.json, above all rope options in their two forms."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxllm.models.attention_plan import RopeConfig
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.checkpoint.overrides import overridden
from jaxllm.models.errors import ModelError
from tests.models import small

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
NEW: dict[str, Any] = {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
NEW_LLAMA3: dict[str, Any] = {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}}
OLD: dict[str, Any] = {"rope_theta": 5e5}
OLD_LLAMA3: dict[str, Any] = {"rope_theta": 5e5, "rope_scaling": LLAMA3}
YARN = {"rope_type": "yarn", "factor": 4.0}
OLD_YARN = {"type": "yarn", "factor": 4.0}


def rope_of(folder: Path, file: dict[str, Any], overrides: dict[str, Any]) -> RopeConfig:
    (folder / "config.json").write_text(json.dumps({**small.CONFIG, **file}))
    rope = read_config(folder, overrides).rope
    assert rope is not None
    return rope


@pytest.mark.parametrize("file", [NEW, NEW_LLAMA3, OLD, OLD_LLAMA3])
def test_rope_options_in_either_form(tmp_path: Path, file: dict[str, Any]) -> None:
    def changed(**overrides: Any) -> tuple[str, float, float]:
        rope = rope_of(tmp_path, file, overrides)
        return rope.kind, rope.theta, rope.factor

    plain = rope_of(tmp_path, file, {})
    kind, factor = plain.kind, plain.factor
    assert plain.theta == 5e5
    for given in (YARN, OLD_YARN):
        assert changed(rope_scaling=given) == ("yarn", 5e5, 4.0)
        assert changed(rope_scaling=given, rope_theta=1e6) == ("yarn", 1e6, 4.0)
        assert changed(rope_parameters=given) == ("yarn", 5e5, 4.0)
    assert changed(rope_theta=1e6) == (kind, 1e6, factor)
    assert changed(rope_theta=1e6, rope_scaling=None, rope_parameters=None)[1] == 1e6
    assert changed(rope_parameters={**YARN, "rope_theta": 1e6}) == ("yarn", 1e6, 4.0)
    assert changed(rope_parameters={"rope_theta": 1e6}) == (kind, 1e6, factor)
    assert changed(rope_parameters={"rope_theta": None, "rope_type": None}) == (kind, 5e5, factor)
    assert changed(rope_scaling=None)[:2] == ("default", 5e5)
    if kind == "llama3":
        assert changed(rope_scaling={"factor": 2.0}) == (kind, 5e5, 2.0)
        assert changed(rope_parameters={"factor": 2.0}) == (kind, 5e5, 2.0)


def test_rope_options_by_kind_of_layer() -> None:
    by_layer = {"full_attention": {"rope_type": "default", "rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    found = overridden({"rope_parameters": by_layer}, {"rope_parameters": {"full_attention": YARN}})
    assert found["rope_parameters"] == {
        "full_attention": {**YARN, "rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4},
    }  # fmt: skip
    for wrong in ({"rope_theta": 1e5}, {"rope_scaling": YARN}, {"rope_parameters": YARN}):
        with pytest.raises(ModelError, match="this model has rope options per layer type"):
            overridden({"rope_parameters": by_layer}, wrong)


def test_inside_the_text_part() -> None:
    found = overridden({"text_config": {**NEW, "a": 1}, "b": {"c": 1}}, {"text_config": OLD | {"rope_scaling": YARN}})
    assert found["text_config"]["rope_parameters"] == {**YARN, "rope_theta": 5e5}
    assert found["text_config"]["a"] == found["b"]["c"] == 1
