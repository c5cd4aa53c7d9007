"""What a configuration needs that is not here."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from jaxllm.models.errors import ModelError
from jaxllm.models.families.absent import ABSENT
from jaxllm.models.families.gaps import find_gaps
from tests.models import small


def write(folder: Path, values: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def test_nothing_for_a_family_that_is_here(tmp_path: Path) -> None:
    gaps = find_gaps(write(tmp_path, small.CONFIG))
    assert gaps.are_none
    assert gaps.nearest == "LlamaForCausalLM"


def test_options_that_a_family_which_is_here_does_not_read(tmp_path: Path) -> None:
    new = {"differential_attention": True, "rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "bend": 2}}
    gaps = find_gaps(write(tmp_path, {**small.CONFIG, **new}))
    assert gaps.is_known
    assert not gaps.are_none
    assert "'differential_attention' = true is unknown" in str(gaps.problem)
    assert gaps.unread == {
        "attention": {"differential_attention": True},
        "rotary embedding": {"rope_parameters.bend": 2},
    }


def test_a_family_of_the_table(tmp_path: Path) -> None:
    values = {**transformers.BeamConfig().to_dict(), "architectures": ["BeamForCausalLM"]}
    gaps = find_gaps(write(tmp_path, values))
    assert not gaps.is_known
    assert gaps.reason == ABSENT["BeamForCausalLM"]
    assert gaps.nearest == "MiMoV2FlashForCausalLM"
    assert gaps.unread["embedding and output"]["final_logit_softcapping"] == 30.0


def test_a_family_that_nobody_knows(tmp_path: Path) -> None:
    own = {"architectures": ["NovelForCausalLM"], "hc_mult": 4, "indexer_types": ["full"]}
    gaps = find_gaps(write(tmp_path, {**small.CONFIG, **own, "vision_config": {"depth": 2}}))
    assert gaps.reason is None
    assert gaps.has_tower
    assert gaps.unread["blocks"] == {"hc_mult": 4}
    assert gaps.unread["other options"].keys() == {"indexer_types", "vision_config"}


def test_what_the_nearest_family_refuses_is_said_and_what_others_read_is_not(tmp_path: Path) -> None:
    values = {**transformers.DoryConfig().to_dict(), "architectures": ["DoryForCausalLM"]}
    gaps = find_gaps(write(tmp_path, values))
    assert gaps.nearest == "Lfm3ForCausalLM"
    assert "unsupported layer type 'mlp'" in str(gaps.problem)
    assert gaps.unread["blocks"]["n_recurrent_loops"] == 2
    assert "intermediate_size" not in str(gaps.unread)


def test_a_type_alone_and_no_name_at_all(tmp_path: Path) -> None:
    values = {**small.CONFIG, "architectures": None}
    assert find_gaps(write(tmp_path, {**values, "model_type": "novel"})).architecture == "novel"
    with pytest.raises(ModelError, match="both 'architectures' and 'model_type' are missing"):
        find_gaps(write(tmp_path, values))
