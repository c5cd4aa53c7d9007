"""Which matrices of an ordinary checkpoint become matrices of few bits while it is read."""

from collections.abc import Mapping

from jaxllm.models.checkpoint.tensor_source import Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.quantization.types import LAYERS, with_types
from jaxllm.pallas_kernels.linear.weight_type import INT4, Activations, Values, WeightType

GROUP = 128
"""Inputs that share a scale in 4 bits; fewer where a matrix has fewer or is no multiple of them."""

METHODS: Mapping[str, WeightType] = {
    "int8": WeightType(Values.INT8),
    "int4": WeightType(Values.CODES, group=GROUP, code=INT4),
    "fp8": WeightType(Values.FLOAT8_E4M3),
    "int8_w8a8": WeightType(Values.INT8, activations=Activations.PER_TOKEN),
    "int8_w4a8": WeightType(Values.CODES, group=GROUP, code=INT4, activations=Activations.PER_TOKEN),
}
"""Types of layers' matrices, by the name of the option."""

TABLES = WeightType(Values.INT8)
"""Type of the embedding and the output layer, whatever layers have: 8 bits a number are most of a small model, and with
a scale for each token they are more exact as int8 than as float8; in 4 bits the output layer costs more than it saves.
Its activations stay as they are, for no later layer makes up for what logits lose.
"""


def quantized(
    config: ModelConfig, names: Mapping[str, str | Source], method: str, *, tables: bool = True
) -> ModelConfig:
    """The model, whose checkpoint has ordinary matrices, with matrices of few bits.

    Embedding and output layer are among them unless `tables` is false.
    """
    kind = METHODS[method]

    def type_of(name: str, layer: int) -> WeightType | None:
        if not name.startswith(LAYERS):
            return TABLES if tables and name in ("embedding", "head") else None
        return None if _decides(name) else kind

    return with_types(config, names, type_of)


def _decides(name: str) -> bool:
    """Whether a module is a router, the gate of what is shared, or a norm."""
    last = name.rpartition(".")[2]
    return last in ("router", "shared_gate") or last.endswith("norm")
