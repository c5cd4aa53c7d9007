"""EXAONE 4: norms after the blocks and on heads; layers without a window do not see positions."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import every_nth_full, layer_types, read_llama, with_norms, with_types
from jaxllm.models.families.family import SANDWICH_NAMES, Family


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """EXAONE 4's configuration. Where no layer has a window, all see positions."""
    defaults = {"num_key_value_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5}
    file = file.reading(**defaults, bos_token_id=0, eos_token_id=2, sliding_window=4096)
    options, window = read_llama(file), file.optional_integer("sliding_window")
    norm, count = options["norm"], len(options["layers"])
    behind = {"attention_output_norm": norm, "mlp_output_norm": norm, "attention_norm": None, "mlp_norm": None}
    layers = [layer.attending(norm=norm) for layer in with_norms(options["layers"], **behind)]
    # "LLLG" says the same as 4.
    pattern, key = file.values.get("sliding_window_pattern", 4) or 0, "sliding_window_pattern"
    period = len(file.text(key)) if isinstance(pattern, str) else file.integer(key, 4, minimum=0) if pattern else 0
    types = layer_types(file, count, every_nth_full(count, period) if window else ["full_attention"] * count)
    if window is not None:
        layers = list(with_types(layers, types, full={"rope": None}, sliding={"window": window}))
    return ModelConfig(architecture=architecture, **(options | {"layers": tuple(layers)}))


FAMILY = Family(read_config, weight_names=SANDWICH_NAMES)
