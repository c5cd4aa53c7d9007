"""Configurations that do not name their architecture, or name it as nobody does any more."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.errors import ModelError
from jaxllm.models.families.naming import architecture_of
from jaxllm.models.families.registry import known_architectures
from tests.models import small

OTHERS = {
    "exaone": "its files are not those of Llama",
    "internlm3": "it has a family of its own here",
    "sarvam_mla": "no published model is known",
    "sarvam_moe": "no published model is known",
}
"""Types that transformers and this package map to different classes, and why."""


def named(**values: Any) -> str:
    return architecture_of(ConfigFile(values))


def test_types_mean_what_they_mean_in_transformers() -> None:
    known = set(known_architectures())
    checked = 0
    for kind, theirs in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        # Larger models, whose own name is that of the whole.
        if theirs in known and kind not in OTHERS:
            text = theirs if "ForCausalLM" in theirs else theirs.replace("ForConditionalGeneration", "ForCausalLM")
            # Encoders generate where they are said to.
            assert named(model_type=kind, is_decoder=True) in (theirs, text), kind
            checked += 1
    assert checked > 80


@pytest.mark.parametrize("given", [None, [], "", [""], [None], "absent"])
@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        ("llama", "LlamaForCausalLM"),
        ("RefinedWebModel", "FalconForCausalLM"),
        ("gemma4_text", "Gemma4ForCausalLM"),
        ("emu3_text_model", "Emu3ForCausalLM"),
        ("xlm-roberta", "XLMRobertaModel"),
        ("stablelm_epoch", "StableLmForCausalLM"),
        ("mpt", "MptForCausalLM"),
        ("nemotron-nas", "DeciLMForCausalLM"),
    ],
)
def test_without_a_name_the_type_counts(given: Any, kind: str, architecture: str) -> None:
    names = {} if given == "absent" else {"architectures": given}
    assert named(model_type=kind, **names) == architecture


def test_a_larger_model_is_known_by_its_parts() -> None:
    assert named(model_type="gemma3", text_config={"hidden_size": 8}) == "Gemma3ForConditionalGeneration"
    assert named(model_type="gemma3") == "Gemma3ForCausalLM"


@pytest.mark.parametrize(
    ("given", "architecture"),
    [
        (["LLaMAForCausalLM"], "LlamaForCausalLM"),
        (["DeepSeekV3ForCausalLM"], "DeepseekV3ForCausalLM"),
        (["BaiChuanForCausalLM"], "BaiChuanForCausalLM"),
        (["RWForCausalLM"], "RWForCausalLM"),
        (["AquilaModel"], "AquilaForCausalLM"),
        (["StableLMEpochForCausalLM"], "StableLmForCausalLM"),
        (["GPTBigCodeLMHeadModel"], "GPTBigCodeForCausalLM"),
        (["Unknown", "MistralForCausalLM"], "MistralForCausalLM"),
        ("LlamaForCausalLM", "LlamaForCausalLM"),
        (["Unknown"], "Unknown"),
    ],
)
def test_names_that_others_wrote(given: Any, architecture: str) -> None:
    assert named(architectures=given, model_type="llama") == architecture


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "both 'architectures' and 'model_type' are missing"),
        ({"model_type": "x" * 5000}, "no architecture is known for 'model_type' 'xxx"),
        ({"model_type": 5}, "'model_type' must be a string"),
        ({"architectures": [1]}, "'architectures' must be a list of strings"),
        ({"architectures": {"a": 1}}, "'architectures' must be a list of strings"),
    ],
)
def test_errors(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError) as error:
        named(**values)
    assert message in str(error.value)
    assert len(str(error.value)) < 400


def test_an_old_name_reads_the_whole_configuration(tmp_path: Path) -> None:
    small.save(tmp_path, config={**small.CONFIG, "architectures": ["LLaMAForCausalLM"]})
    assert read_config(tmp_path).architecture == "LlamaForCausalLM"


def test_stablelm_as_its_authors_wrote_it() -> None:
    values = {
        "vocab_size": 50304, "hidden_size": 2560, "intermediate_size": 6912, "num_hidden_layers": 2, "num_heads": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096, "norm_eps": 1e-5,
        "rope_pct": 0.5, "rope_theta": 10000, "rotary_scaling_factor": 1.0, "hidden_act": "silu",
    }  # fmt: skip
    from jaxllm.models.families.stablelm import read_config as read_stablelm

    config = read_stablelm(ConfigFile(values), "StableLmForCausalLM")
    assert config.rope is not None
    assert config.rope.rotary_size == 40


SIZES: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256,
}  # fmt: skip


@pytest.mark.parametrize("global_head_dim", [16, 32, 512])
def test_gemma_4_as_transformers_writes_it(tmp_path: Path, global_head_dim: int) -> None:
    """Layers with heads of the usual size are not in `per_layer_config`, which may be empty then."""
    config = transformers.Gemma4TextConfig(
        **SIZES, hidden_size_per_layer_input=0, global_head_dim=global_head_dim, architectures=["Gemma4ForCausalLM"]
    )
    (tmp_path / "config.json").write_text(config.to_json_string())
    found = read_config(tmp_path)
    assert [found.head_size_of(layer.attention) for layer in found.layers] == [16] * 5 + [global_head_dim]


def test_ministral_3_as_transformers_writes_it(tmp_path: Path) -> None:
    """Its rope options repeat the positions."""
    config = transformers.Ministral3Config(**SIZES, architectures=["Ministral3ForCausalLM"])
    assert "max_position_embeddings" in json.loads(config.to_json_string())["rope_parameters"]
    (tmp_path / "config.json").write_text(config.to_json_string())
    assert read_config(tmp_path).architecture == "Ministral3ForCausalLM"
