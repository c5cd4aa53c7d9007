"""Fields of PEFT's configuration mean what they mean there, or are refused by name."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import peft
import pytest
from peft.tuners.tuners_utils import check_target_module_exists
from peft.utils.other import get_pattern_key

from jaxllm.models.adapters import config
from jaxllm.models.adapters.config import AdapterConfig
from jaxllm.models.adapters.errors import AdapterError

MODULES = (
    "lm_head",
    "model.embed_tokens",
    "model.layers.0.self_attn.q_proj",
    "model.layers.0.mlp.up_proj",
    "model.layers.1.self_attn.q_proj",
    "model.layers.11.self_attn.k_proj",
    "model.layers.1.mlp.experts.2.up_proj",
    "model.visual.blocks.1.attn.qkv",
    "score",
)
TARGETS: dict[str, dict[str, Any]] = {
    "list": {"target_modules": ["q_proj", "model.layers.0.mlp.up_proj"]},
    "no part of a name": {"target_modules": ["proj", "q_pro", "_proj"]},
    "expression": {"target_modules": r"model\.layers\.1.*_proj"},
    "unsloth's expression": {
        "target_modules": r"(?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:q_proj|k_proj).*?)"
        r"|(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|mlp)\.(?:(?:q_proj|k_proj|up_proj)))"
    },
    "layers": {"target_modules": ["q_proj", "k_proj", "up_proj"], "layers_to_transform": [1, 2]},
    "layer": {"target_modules": ["q_proj", "k_proj", "up_proj"], "layers_to_transform": 11},
    "layers under a name": {
        "target_modules": ["q_proj", "qkv", "up_proj"],
        "layers_to_transform": [1],
        "layers_pattern": ["blocks", "h"],
    },
    "excluded": {"target_modules": ["q_proj", "up_proj"], "exclude_modules": ["layers.1.self_attn.q_proj", "up_proj"]},
    "excluded by expression": {"target_modules": ["q_proj", "up_proj"], "exclude_modules": r".*\.1\..*"},
    "saved": {"target_modules": ["q_proj", "up_proj"], "modules_to_save": ["self_attn", "score"]},
}


def written(folder: Path, **values: Any) -> Path:
    """A folder with a configuration."""
    (folder / "adapter_config.json").write_text(json.dumps(values))
    return folder


@pytest.mark.parametrize("name", TARGETS)
def test_targets_are_those_of_peft(tmp_path: Path, name: str) -> None:
    options = TARGETS[name]
    peft.LoraConfig(**options).save_pretrained(str(tmp_path))
    found = AdapterConfig.read(tmp_path)
    theirs = peft.LoraConfig(**options)
    wanted = [module for module in MODULES if check_target_module_exists(theirs, module)]
    wanted = [
        module for module in wanted if "Excluded" not in type(check_target_module_exists(theirs, module)).__name__
    ]
    assert [module for module in MODULES if found.is_target(module)] == wanted


@pytest.mark.parametrize(
    "pattern", ["q_proj", r"layers\.1\..*", "^model.layers.0.mlp.up_proj", "up_proj$", "k_proj|q_proj"]
)
def test_ranks_are_those_of_peft(tmp_path: Path, pattern: str) -> None:
    found = AdapterConfig.read(written(tmp_path, r=8, rank_pattern={"nothing": 3, pattern: 2}, target_modules=["x"]))
    for module in MODULES:
        key = get_pattern_key(list(found.rank_pattern), module)
        assert found.rank_of(module) == found.rank_pattern.get(key, 8)


def test_defaults_are_those_of_peft(tmp_path: Path) -> None:
    found, theirs = AdapterConfig.read(written(tmp_path, target_modules=["q_proj"])), peft.LoraConfig()
    assert (found.rank, found.alpha) == (theirs.r, theirs.lora_alpha)
    assert found.scaling_of("q_proj") == 1.0
    assert (found.bias, found.use_dora, found.use_rslora) == (theirs.bias, theirs.use_dora, theirs.use_rslora)


def test_every_field_of_peft_is_known() -> None:
    known = {*config._HONOURED, *config._TRAINING, *config._REFUSED}
    assert {field.name for field in dataclasses.fields(peft.LoraConfig)} <= known


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layer_replication", [[0, 2], [1, 3]]),
        ("arrow_config", {"top_k": 2}),
        ("use_qalora", True),
        ("use_bdlora", {"nblocks": 2}),
        ("kasa_config", {"beta": 0.1}),
        ("monteclora_config", {"num_samples": 8}),
        ("megatron_config", {"hidden_size": 8}),
        ("ensure_weight_tying", True),
        ("peft_type", "VERA"),
        ("init_lora_weights", "pissa_niter_4"),
        ("init_lora_weights", "olora"),
        ("init_lora_weights", "corda"),
        ("bias", "some"),
        ("r", 0),
        ("r", "8"),
        ("lora_alpha", "16"),
        ("lora_alpha", float("nan")),
        ("rank_pattern", {"q_proj": -1}),
        ("rank_pattern", {"(": 4}),
        ("alpha_pattern", {"q_proj": "a"}),
        ("target_modules", "("),
        ("target_modules", "(a+)+b"),
        ("target_modules", [1]),
        ("layers_to_transform", "1"),
        ("trainable_token_indices", {"embed_tokens": ["a"]}),
        ("use_dora", "yes"),
        ("lora_bias", True),
        ("what_comes_next", 3),
        ("use_rslorra", True),
    ],
)
def test_a_field_that_is_refused_is_named(tmp_path: Path, field: str, value: Any) -> None:
    with pytest.raises(AdapterError, match=field) as raised:
        AdapterConfig.read(written(tmp_path, **{"use_dora": True, "target_modules": ["q_proj"], field: value}))
    assert "adapter_config.json" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("what_comes_next", False),
        ("layer_replication", None),
        ("loftq_config", {"loftq_bits": 4}),
        ("eva_config", {"rho": 2.0}),
    ],
)
def test_a_field_that_is_off_or_only_initialises_is_passed_over(tmp_path: Path, field: str, value: Any) -> None:
    AdapterConfig.read(written(tmp_path, **{field: value}))
