"""SmolLM3: Llama where every fourth layer does not see positions."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import FULL, SLIDING, layer_types, read_llama, with_biases
from jaxllm.models.families.family import Family


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """SmolLM3's configuration; `no_rope_layers` has 1 for a layer with a rotary embedding."""
    defaults = {"num_key_value_heads": 4, "max_position_embeddings": 32768, "rope_theta": 2_000_000.0}
    ids = {"bos_token_id": 128000, "eos_token_id": 128001}
    file = file.reading(**defaults, **ids, tie_word_embeddings=True)
    file.ignore("max_window_layers")  # `no_rope_layers` and `layer_types` say it
    options, bias = read_llama(file), file.boolean("attention_bias", False)
    layers = with_biases(options["layers"], qkv=bias, output=bias, mlp=file.boolean("mlp_bias", False))
    every = file.integer("no_rope_layer_interval", 4)
    rotated = [float((layer + 1) % every != 0) for layer in range(len(layers))]
    if file.has("no_rope_layers"):
        rotated = file.numbers("no_rope_layers")
    window = file.optional_integer("sliding_window") or 0
    window = window if file.boolean("use_sliding_window", False) else 0
    types = layer_types(file, len(layers), [FULL if has_rope or not window else SLIDING for has_rope in rotated])
    if len(rotated) != len(layers):
        raise file.wrong("no_rope_layers", f"a list of {len(layers)} numbers")
    options["layers"] = tuple(
        layer.attending(rope=layer.attention.rope if has_rope else None, window=window if kind == SLIDING else 0)
        for layer, has_rope, kind in zip(layers, rotated, types, strict=True)
    )
    return ModelConfig(architecture=architecture, **options)


FAMILY = Family(read_config)
