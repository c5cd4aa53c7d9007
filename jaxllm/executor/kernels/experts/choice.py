"""Which implementation multiplies with the matrices of experts."""

from jaxllm.errors import ConfigError
from jaxllm.models.config import ModelConfig


def choose_experts(asked: str, platform: str, model: ModelConfig) -> str:
    """'tpu' or 'xla': the one asked for, or the fastest for 'auto'.

    Raises `ConfigError` where the one asked for is of another platform.
    """
    if asked == "tpu" and platform != "tpu":
        raise ConfigError(f"moe_backend='tpu' needs a TPU; this is a {platform.upper()}")
    return "tpu" if asked != "xla" and platform == "tpu" and model.expert_counts else "xla"
