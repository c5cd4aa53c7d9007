"""Apertus: norms on heads, and MLPs without a gate, whose activation has two learned numbers in every layer.

In Apertus 1.5, images and sound are tokens of the vocabulary, which the output layer may lack.
"""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_llama, text_part, with_biases, without_gates
from jaxllm.models.families.family import LLAMA_NAMES, TEXT_PARTS, Family, Names
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


def read_v15(file: ConfigFile, architecture: str) -> ModelConfig:
    """Apertus 1.5's configuration, or that of its language model; what makes tokens of images and sound is not used."""
    file = text_part(file)
    config = read_config(file, architecture)
    tokens = file.optional_integer("output_vocab_size")
    if tokens is None:
        return config
    if tokens > config.vocab_size:
        raise file.wrong("output_vocab_size", f"at most 'vocab_size' = {config.vocab_size}")
    if config.tie_word_embeddings and tokens < config.vocab_size:
        raise file.wrong("output_vocab_size", "'vocab_size': 'tie_word_embeddings' makes one matrix of both")
    return replace(config, output=replace(config.output, tokens=tokens))


NAMES: Names = {
    **LLAMA_NAMES,
    "layers.*.attention_norm": "model.layers.*.attention_layernorm",
    "layers.*.mlp_norm": "model.layers.*.feedforward_layernorm",
    "layers.*.mlp.learned": "model.layers.*.mlp.act_fn",
}

# Its two constants are the same in all checkpoints.
FAMILY = Family(read_config, weight_names=NAMES, ignored_tensors=(".act_fn.beta", ".act_fn.eps"))
V15 = replace(
    FAMILY,
    read_config=read_v15,
    renamed=TEXT_PARTS,
    other_parts=("model.vision_tokenizer.", "model.audio_tokenizer."),
)
