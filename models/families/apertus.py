"""Apertus: norms on heads, and MLPs without a gate, whose activation has two learned numbers in every layer."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_llama, with_biases, without_gates
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names
from jaxllm.models.layers.activation import LEARNED, read_activation

_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 12_000_000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Apertus' configuration."""
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    file = file.reading(**ends, hidden_act=LEARNED, max_position_embeddings=65536, rms_norm_eps=1e-5)
    # Files of the authors' own code name what is the only way here.
    file.expect(qk_norm=True, post_norm=False, mlp_bias=False)
    if not (file.has("rope_scaling") or file.has("rope_theta")):
        file = file.reading(rope_parameters=_ROPE)
    is_learned = file.text("hidden_act") == LEARNED
    activation = LEARNED if is_learned else read_activation(file, "hidden_act", LEARNED)
    options, bias = read_llama(file.but(hidden_act="silu")), file.boolean("attention_bias", False)
    layers = without_gates(with_biases(options["layers"], qkv=bias, output=bias))
    options["layers"] = tuple(
        replace(layer.attending(norm=options["norm"]), mlp=replace(layer.mlp, activation=activation))
        for layer in layers
    )
    return ModelConfig(architecture=architecture, **options)


NAMES: Names = {
    **LLAMA_NAMES,
    "layers.*.attention_norm": "model.layers.*.attention_layernorm",
    "layers.*.mlp_norm": "model.layers.*.feedforward_layernorm",
    "layers.*.mlp.learned": "model.layers.*.mlp.act_fn",
}

# Its two constants are the same in all checkpoints.
FAMILY = Family(read_config, weight_names=NAMES, ignored_tensors=(".act_fn.beta", ".act_fn.eps"))
