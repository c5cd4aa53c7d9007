"""The first GPT: GPT-2 with norms on the sum of each block and its input, and none at the end."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import gpt, gpt2
from jaxllm.models.families.common import with_norms
from jaxllm.models.families.family import Family, Names
from jaxllm.models.mlp_plan import MLPPlan

ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "silu"}
"""What they are called in other configurations."""


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """GPT's configuration; its activation has a name of its own, and its MLP is four times as wide as the rest."""
    name = file.text("afn", "gelu")
    if name not in ACTIVATIONS:
        raise file.wrong("afn", f"one of {', '.join(ACTIVATIONS)}")
    file.ignore("predict_special_tokens")
    file = file.reading(n_positions=512, bos_token_id=None, eos_token_id=None)
    mlp = MLPPlan(activation=ACTIVATIONS[name], is_gated=False, bias=True)
    config = gpt2.read_with_mlp(file, architecture, mlp)
    behind = {"attention_output_norm": config.norm, "mlp_output_norm": config.norm}
    layers = with_norms(config.layers, **behind, attention_norm=None, mlp_norm=None)
    return replace(config, norm=None, layers=tuple(replace(layer, normalises_sum=True) for layer in layers))


def weight_names(config: ModelConfig) -> Names:
    """GPT-2's names, but for norms and embeddings."""
    kept = {module: source for module, source in gpt2.weight_names(config).items() if "norm" not in module}
    return {
        **kept,
        "embedding": "transformer.tokens_embed",
        "embedding.positions": "transformer.positions_embed",
        "layers.*.attention_output_norm": "transformer.h.*.ln_1",
        "layers.*.mlp_output_norm": "transformer.h.*.ln_2",
    }


FAMILY = Family(
    read_config,
    weight_names=weight_names,
    ignored_tensors=(*gpt.BUFFERS, ".position_ids"),
    renamed=gpt.with_prefix("transformer.", "tokens_embed", "positions_embed", "h"),
    prefix="transformer.",
)
