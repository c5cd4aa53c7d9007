"""Fields of configurations: what they say is what the library makes of them, or they are refused by name."""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.errors import ModelError
from jaxllm.models.quantization.by_module import ByModule
from tests.models.quantization.formats import FOUR, INT, compressed
from tests.models.quantization.test_formats import MODULE, read, weight, written

VALUES: dict[str, tuple[Any, ...]] = {
    "num_bits": (2, 3, 4, 6, 8),
    "type": ("int", "float"),
    "symmetric": (True, False),
    "group_size": (None, -1, 8, 16),
    "strategy": (None, "tensor", "channel", "group", "block", "token", "tensor_group"),
    "block_structure": (None, [16, 8], [12, 10]),
    "dynamic": (False, True),
    "actorder": (None, "weight", "group"),
    "observer": ("mse",),
    "observer_kwargs": ({"maxshrink": 0.2},),
}
FORMATS = ("int-quantized", "float-quantized", "naive-quantized", "pack-quantized")
FIELDS = st.sampled_from([(name, value) for name, values in VALUES.items() for value in values])


def of(section: dict[str, Any]) -> ByModule:
    module = import_module(f"jaxllm.models.quantization.{section['quant_method'].replace('-', '_')}")
    file = ConfigFile(section, "config.json: quantization_config")
    found = module.read_format(file)
    file.check_all_used(("quant_method",))
    assert isinstance(found, ByModule)
    return found


@settings(
    max_examples=120,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.sampled_from(FORMATS), st.sampled_from([INT, FOUR]), st.lists(FIELDS, min_size=1, max_size=3))
def test_weights_are_as_the_library_reads_them(
    tmp_path: Path, name: str, base: dict[str, Any], changes: list[tuple[str, Any]]
) -> None:
    changed = {**base, **dict(changes)}
    try:
        form = compressed(name, changed)
        made = form.make(weight(32, 48))
    except Exception:  # noqa: BLE001 - whatever the library says to what it cannot make
        return
    tensors = written(tmp_path, made.tensors)
    matrix, refusal = None, ""
    try:
        matrix = read(form, tensors, (32, 48))
    except ModelError as error:
        refusal = str(error)
    if matrix is None:
        assert any(f"'{key}'" in refusal for key in VALUES), refusal
        return
    np.testing.assert_allclose(matrix.dequantized(), made.dense, rtol=0, atol=2e-6)


GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 8}
AWQ: dict[str, Any] = {"quant_method": "awq", "bits": 4, "group_size": 8, "version": "gemm"}
FP8: dict[str, Any] = {"quant_method": "fp8", "weight_block_size": [16, 8]}
CT: dict[str, Any] = compressed("int-quantized", INT | {"strategy": "channel"}).section


@pytest.mark.parametrize(
    ("section", "field"),
    [
        (GPTQ | {"bits": 3}, "bits"),
        (GPTQ | {"bits": None}, "bits"),
        (GPTQ | {"group_size": 0}, "group_size"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format"),
        (GPTQ | {"is_marlin_format": True}, "is_marlin_format"),
        (GPTQ | {"pack_dtype": "int16"}, "pack_dtype"),
        (GPTQ | {"adapter": {"name": "lora"}}, "adapter"),
        (GPTQ | {"dynamic": {"+:.*down_proj": {"bits": 2}}}, "bits"),
        (GPTQ | {"dynamic": {"+:.*down_proj": {"rotation": "hadamard"}}}, "rotation"),
        (GPTQ | {"sym": "yes"}, "sym"),
        (AWQ | {"version": "gemv"}, "version"),
        (AWQ | {"bits": 8}, "bits"),
        (AWQ | {"zero_point": False}, "zero_point"),
        (AWQ | {"backend": "llm-awq"}, "backend"),
        (FP8 | {"fmt": "e5m2"}, "fmt"),
        (FP8 | {"activation_scheme": "none"}, "activation_scheme"),
        (FP8 | {"weight_block_size": [128]}, "weight_block_size"),
        (FP8 | {"weight_block_size": [0, 128]}, "weight_block_size"),
        (FP8 | {"weight_block_size": "128"}, "weight_block_size"),
        (FP8 | {"scale_fmt": "log2"}, "scale_fmt"),
        (FP8 | {"expert_dtype": "fp4"}, "expert_dtype"),
        (FP8 | {"modules_to_convert": ["model.embed_tokens"]}, "modules_to_convert"),
        (CT | {"format": "marlin-24"}, "format"),
        (CT | {"config_groups": {}}, "config_groups"),
        (CT | {"config_groups": {"W8A8": ["Linear"]}}, "W8A8"),
        (CT | {"quantization_status": "frozen"}, "quantization_status"),
        (CT | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
        (CT | {"transform_config": {"config_groups": {"R1": {}}}}, "transform_config"),
        (CT | {"moe_sparsity_config": {"method": "prune"}}, "moe_sparsity_config"),
        (CT | {"config_groups": {"a": {"targets": ["Linear"]}}}, "weights"),
        (CT | {"config_groups": {"a": {"targets": ["Linear"], "weights": INT, "output_activations": INT}}},
         "output_activations"),
        (CT | {"config_groups": {"a": {"targets": "Linear", "weights": INT}}}, "targets"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(section: dict[str, Any], field: str) -> None:
    with pytest.raises(ModelError, match=f"'{field}'"):
        of(section)


def test_an_expression_that_is_none() -> None:
    with pytest.raises(ModelError, match=r"'\*' is not a regular expression"):
        of(CT | {"ignore": ["re:*"]}).format_of(MODULE)


@pytest.mark.parametrize(
    ("section", "module", "is_quantised"),
    [
        (CT, "model.layers.1.mlp.down_proj", True),
        (CT, "lm_head", False),
        (CT, "model.embed_tokens", False),
        (CT | {"ignore": ["re:.*down_proj$"]}, "model.layers.1.mlp.down_proj", False),
        (CT | {"ignore": ["model.layers.1.mlp.down_proj"]}, "model.layers.1.mlp.down_proj", False),
        (CT | {"ignore": ["model.layers.1"]}, "model.layers.1.mlp.down_proj", True),
        (CT | {"ignore": ["re:model.language_model.layers.1.*"]}, "model.layers.1.mlp.down_proj", False),
        (CT | {"ignore": ["Linear"]}, "model.layers.1.mlp.down_proj", False),
        (GPTQ, "lm_head", False),
        (GPTQ | {"lm_head": True}, "lm_head", True),
        (GPTQ, "model.layers.0.mlp.gate", False),
        (GPTQ, "model.layers.0.mlp.gate_proj", True),
        (GPTQ | {"dynamic": {r"-:model\.layers\.0\.": {}}}, "model.layers.0.mlp.up_proj", False),
        (GPTQ | {"dynamic": {r"-:model\.layers\.0\.": {}}}, "model.layers.1.mlp.up_proj", True),
        (GPTQ | {"modules_in_block_to_quantize": [["self_attn.q_proj"]]}, "model.layers.1.self_attn.q_proj", True),
        (GPTQ | {"modules_in_block_to_quantize": [["self_attn.q_proj"]]}, "model.layers.1.mlp.up_proj", False),
        (AWQ | {"modules_to_not_convert": ["mlp.up_proj"]}, "model.layers.1.mlp.up_proj", False),
        (AWQ | {"modules_to_not_convert": ["model.layers.1"]}, "model.layers.1.mlp.up_proj", False),
        (AWQ | {"modules_to_not_convert": ["model.layers.1"]}, "model.layers.11.mlp.up_proj", True),
        (FP8 | {"ignored_layers": ["model.layers.1.mlp.up_proj"]}, "model.layers.1.mlp.up_proj", False),
        (FP8 | {"modules_to_not_convert": ["model.layers.1.mlp.gate"]}, "model.layers.1.mlp.gate_proj", True),
    ],
)
def test_which_modules_are_quantised(section: dict[str, Any], module: str, is_quantised: bool) -> None:
    assert (of(section).weight_type(f"{module}.weight") is not None) == is_quantised


def test_overrides_and_groups_have_formats_of_their_own() -> None:
    overridden = of(GPTQ | {"dynamic": {"+:.*down_proj": {"bits": 8, "group_size": -1}}})
    wide, narrow = (overridden.weight_type(f"model.layers.0.mlp.{name}.weight") for name in ("down_proj", "up_proj"))
    assert wide is not None
    assert narrow is not None
    assert (wide.group, wide.code, narrow.group) == (None, None, 8)
    (group,) = CT["config_groups"].values()
    groups = {"a": group, "b": {**group, "targets": ["re:.*down_proj"], "weights": FOUR, "format": "pack-quantized"}}
    both = of(CT | {"config_groups": groups})
    first, second = (both.weight_type(f"model.layers.0.mlp.{name}.weight") for name in ("up_proj", "down_proj"))
    assert first is not None
    assert second is not None
    assert (first.group, second.group) == (None, 8)
