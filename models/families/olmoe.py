"""OLMoE and FlexOlmo: experts in every layer, queries and keys normalised over all heads."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families.common import read_llama, with_biases, with_experts
from jaxllm.models.families.family import LLAMA_NAMES, SANDWICH_NAMES, Family, expert_names
from jaxllm.models.families.olmo import read_olmo2
from jaxllm.models.mlp_plan import RouterPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """OLMoE's configuration. Raises `ModelError` for clipped heads, which no published checkpoint has."""
    names = {"num_experts": "num_local_experts"}
    file = file.reading(names, max_position_embeddings=4096, rms_norm_eps=1e-5, eos_token_id=50279)
    if file.has("clip_qkv"):
        raise ModelError(f"{file.source}: 'clip_qkv' after the norms of queries and keys is not supported")
    options, bias = read_llama(file), file.boolean("attention_bias", False)
    layers = with_biases(options["layers"], qkv=bias, output=bias)
    options["layers"] = with_experts(
        file,
        tuple(layer.attending(norm=layer.attention_norm, norm_over="all") for layer in layers),
        count=file.integer("num_experts", 64),
        per_token=file.integer("num_experts_per_tok", 8),
        size=options["intermediate_size"],
        router=RouterPlan(normalised=file.boolean("norm_topk_prob", False)),
    )
    return ModelConfig(architecture=architecture, **options)


def read_flex_olmo(file: ConfigFile, architecture: str) -> ModelConfig:
    """FlexOlmo's: OLMo 2's, with experts."""
    names = {"num_experts": "num_local_experts"}
    sizes = {"max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 500_000.0}
    file = file.reading(names, **sizes, eos_token_id=100257)
    config = read_olmo2(file, architecture)
    layers = with_experts(
        file,
        config.layers,
        count=file.integer("num_experts", 7),
        per_token=file.integer("num_experts_per_tok", 5),
        size=config.intermediate_size,
        router=RouterPlan(normalised=file.boolean("norm_topk_prob", False)),
    )
    return replace(config, layers=layers)


FAMILY = Family(read_config, weight_names={**LLAMA_NAMES, **expert_names("mlp")})
FLEX_OLMO = Family(read_flex_olmo, weight_names={**SANDWICH_NAMES, **expert_names("mlp")})
