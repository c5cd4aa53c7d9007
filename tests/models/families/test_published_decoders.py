"""Configurations of decoders as they are published: every option is known, though only some change what is computed.

`published_decoders.json` has whole files, as far as they are publicly known, with the options of the authors' own code
that transformers has not, or passes over. A file that is refused for one of these is a model that nobody can serve.
"""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.errors import ModelError
from tests.thinned import EVERY_CASE, thinned

PUBLISHED: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("published_decoders.json").read_text())


def read(folder: Path, values: dict[str, Any]) -> Any:
    (folder / "config.json").write_text(json.dumps(values))
    return read_config(folder)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations(tmp_path: Path, name: str) -> None:
    values = PUBLISHED[name]
    config = read(tmp_path, values)
    text = values.get("text_config") or values.get("llm_config") or values
    hidden = next(text[key] for key in ("hidden_size", "d_model", "n_embd") if text.get(key))
    assert config.hidden_size == hidden
    if not config.architecture.startswith(("NemotronH", "Zamba2", "FalconH1")):
        # In these a layer of the file is half of one here, or two.
        keys = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
        assert config.num_layers == next(text[key] for key in keys if key in text)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("Hunyuan-7B-Instruct", {"num_experts": 16}, "'num_experts' must be 1, found 16"),
        ("Hunyuan-7B-Instruct", {"use_cla": True}, "'use_cla' = true is unknown"),
        ("Hunyuan-7B-Instruct", {"use_qk_norm": False}, "'use_qk_norm' must be true, found false"),
        ("Hunyuan-7B-Instruct", {"attention_head_dim": 64}, "'attention_head_dim' must be 128, found 64"),
        ("MiniMax-M2", {"attn_type_list": [0] * 62}, "'attn_type_list' must be a list of 1"),
        ("MiniMax-M2", {"layernorm_mlp_beta": 2.0}, "'layernorm_mlp_beta' must be 1, found 2.0"),
        ("Phi-4-mini-instruct", {"full_attn_mod": 2}, "'full_attn_mod' must be 1, found 2"),
        ("Jamba-v0.1", {"mamba_inner_layernorms": False}, "'mamba_inner_layernorms' must be true"),
        ("Nemotron-H-8B-Base-8K", {"rms_norm_eps": 1e-6}, "'rms_norm_eps' must be 1e-05"),
        ("Zamba2-7B", {"ffn_hidden_size": 8}, "'ffn_hidden_size' must be 14336"),
        ("dots.llm1.inst", {"moe_layer_freq": 2}, "'moe_layer_freq' must be 1"),
        ("dots.llm1.inst", {"scoring_func": "softmax"}, "'scoring_func' must be 'sigmoid' or 'noaux_tc'"),
        ("starcoder2-7b", {"mlp_type": "gated"}, "'mlp_type' must be \"default\""),
        ("c4ai-command-r7b", {"layer_switch": 2}, "'layer_switch' must be 4"),
        ("c4ai-command-r7b", {"rotary_pct": 0.5}, "'rotary_pct' must be 1.0"),
        ("gemma-2-9b-it", {"sliding_window_size": 1024}, "'sliding_window_size' must be 4096"),
        ("Bamba-9B", {"attn_rotary_emb": 128}, "'attn_rotary_emb' must be 64"),
        ("granite-4.0-h-tiny", {"normalization_function": "layernorm"}, "'normalization_function' must be \"rmsnorm\""),
        ("mamba-2.8b-hf", {"rms_norm": False}, "'rms_norm' must be true"),
        ("mamba-2.8b-hf", {"ssm_cfg": {"layer": "Mamba2"}}, "'ssm_cfg' must be {}"),
    ],
)
def test_other_values_of_these_options_are_refused(
    tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError) as refusal:
        read(tmp_path, {**PUBLISHED[name], **changes})
    assert message in str(refusal.value)


NASTY: list[Any] = [
    None, True, 0, -1, 1, 10**12, -1.5, float("nan"), float("inf"), "", "full", [], [[]], ["a"], {}, {"a": 1}, [10**30],
]  # fmt: skip


FEW = ("EXAONE-4.0-32B", "gemma-2-9b-it", "granite-3.1-3b-a800m")


@pytest.mark.slow
@pytest.mark.parametrize("name", thinned(FEW, [name for name in PUBLISHED if name not in FEW]))
def test_no_value_is_another_error(tmp_path: Path, name: str) -> None:
    """Each option with each of these, or some of them, one at a time: read, or refused by the file's own error."""
    values = PUBLISHED[name]
    for place, key in enumerate(values):
        # An option has every third of them, the option after it the next ones.
        for value in NASTY if EVERY_CASE else NASTY[place % 3 :: 3]:
            with contextlib.suppress(ModelError):
                read(tmp_path, {**values, key: value})


def test_layers_of_different_kinds_are_refused_by_name(tmp_path: Path) -> None:
    """As in the Nemotron models that were made from Llama by search."""
    layer = {"attention": {"n_heads_in_group": 8, "no_op": True}, "ffn": {"ffn_mult": 2.625, "no_op": False}}
    values = {**PUBLISHED["DeciLM-7B"], "num_key_value_heads_per_layer": None, "block_configs": [layer] * 32}
    with pytest.raises(ModelError, match="'block_configs' must be null: layers of different kinds are not supported"):
        read(tmp_path, values)
