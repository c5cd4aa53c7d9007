"""nanochat: norms without weights everywhere, squared ReLU without a gate, and heads that turn the other way."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import HalvesSwapped, Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import read_llama, with_biases, with_norms, without_gates
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names
from jaxllm.models.plan import EmbeddingPlan, OutputPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """The configuration of nanochat. Embeddings have a norm, too."""
    ends = {"bos_token_id": 0, "eos_token_id": 1}
    file = file.reading(**ends, hidden_act="relu2", max_position_embeddings=2048)
    options, bias = read_llama(file), file.boolean("attention_bias", False)
    norm = replace(options["norm"], weight=False)
    layers = with_norms(without_gates(options["layers"]), attention_norm=norm, mlp_norm=norm)
    biased = with_biases(layers, qkv=bias, output=bias)
    return ModelConfig(
        architecture=architecture,
        **options
        | {
            "layers": tuple(layer.attending(norm=norm, norm_is_last=True) for layer in biased),
            "norm": norm,
            "embedding": EmbeddingPlan(norm=norm),
            "output": OutputPlan(soft_cap=file.optional_number("final_logit_softcapping")),
        },
    )


def weight_names(config: ModelConfig) -> Names:
    """Turning back is turning what has its halves in the other order; scores and norms do not see the order."""
    block, swapped = "model.layers.*.self_attn", HalvesSwapped(config.head_size)
    return {
        **LLAMA_NAMES,
        "layers.*.attention.query": Source(f"{block}.q_proj", swapped),
        "layers.*.attention.key": Source(f"{block}.k_proj", swapped),
        "layers.*.mlp.up": "model.layers.*.mlp.fc1",
        "layers.*.mlp.down": "model.layers.*.mlp.fc2",
    }


FAMILY = Family(read_config, weight_names=weight_names)
