"""Nemotron (3 and Minitron) and Jais 2: LayerNorm, Nemotron's around zero, and squared ReLU without a gate."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_llama, with_biases, with_norms, without_gates
from jaxllm.models.families.family import Family
from jaxllm.models.norm_plan import NormPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Nemotron's configuration; half of each head is rotated."""
    defaults = {"hidden_act": "relu2", "max_position_embeddings": 4096, "partial_rotary_factor": 0.5}
    file = file.reading({"partial_rotary_factor": "rope_percent"}, **defaults, bos_token_id=2, eos_token_id=3)
    norm = NormPlan(kind="layer", eps=file.number("norm_eps", 1e-5), offset=1.0, bias=True)
    return _model(file, architecture, norm, has_biases=False)


def read_jais2(file: ConfigFile, architecture: str) -> ModelConfig:
    """Jais 2's, with biases unless switched off."""
    file = file.reading(hidden_act="relu2", max_position_embeddings=8192, bos_token_id=0, eos_token_id=150024)
    norm = NormPlan(kind="layer", eps=file.number("layer_norm_eps", 1e-5), bias=True)
    return _model(file, architecture, norm, has_biases=True)


def _model(file: ConfigFile, architecture: str, norm: NormPlan, *, has_biases: bool) -> ModelConfig:
    options, bias = read_llama(file), file.boolean("attention_bias", has_biases)
    layers = with_biases(options["layers"], qkv=bias, output=bias, mlp=file.boolean("mlp_bias", has_biases))
    options["layers"] = without_gates(with_norms(layers, attention_norm=norm, mlp_norm=norm))
    return ModelConfig(architecture=architecture, **(options | {"norm": norm}))


FAMILY = Family(read_config)
JAIS2 = Family(read_jais2)
