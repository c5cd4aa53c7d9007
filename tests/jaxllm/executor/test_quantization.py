"""--quantization alongside what a checkpoint is quantised by: its own method is accepted, others have an error."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.executor.resolve import resolve_config
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.checkpoint.find_model import find_model

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def resolved(folder: Path, section: dict[str, Any] | None, method: str | None) -> ResolvedConfig:
    """A configuration of the demo model, as if its checkpoint were quantised."""
    config = json.loads((find_model("demo") / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | ({"quantization_config": section} if section else {})))
    return resolve_config(EngineConfig.from_options({"model": str(folder), "quantization": method}))


@pytest.mark.parametrize(
    ("section", "method"), [(AWQ, "awq"), (AWQ, "awq_marlin"), (FP8, "fp8"), (AWQ, None), (None, "int8")]
)
def test_what_fits_is_accepted(tmp_path: Path, section: dict[str, Any] | None, method: str | None) -> None:
    model = resolved(tmp_path, section, method).model
    assert all(plan.weight_types for plan in model.layers)
    assert (model.weight_format is None) == (section is None)


@pytest.mark.parametrize(
    ("section", "method", "message"),
    [
        (AWQ, "gptq", "'gptq': the checkpoint is quantized with 'awq', which needs no flag; omit quantization"),
        (AWQ, "int8", "'int8': the checkpoint is quantized with 'awq'"),
        (None, "awq", "'awq': the checkpoint is not quantized; choose one of int8, int4, fp8"),
        ({"quant_method": "hqq"}, None, "quantized with 'hqq' cannot be read; supported methods are awq, "),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, section: dict[str, Any] | None, method: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        resolved(tmp_path, section, method)
