"""Phi-3.5-MoE: norms with biases, and two experts by SparseMixer."""

from jaxllm.models.attention_plan import RopeConfig
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families.common import read_llama, with_biases, with_experts, with_norms
from jaxllm.models.families.family import LLAMA_NAMES, Family, expert_names
from jaxllm.models.families.rotary import read_rope
from jaxllm.models.mlp_plan import RouterPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import OutputPlan


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """PhiMoE's configuration. Raises `ModelError` for another number of experts than two for each token."""
    file = file.reading(
        max_position_embeddings=131072, num_key_value_heads=8, rope_theta=1e6, rms_norm_eps=1e-5, bos_token_id=1
    )
    if file.integer("num_experts_per_tok", 2) != 2:
        raise file.wrong("num_experts_per_tok", "2, as SparseMixer has it")
    options, bias = read_llama(file, rope=_rope(file)), file.boolean("attention_bias", False)
    norm = NormPlan(kind="layer", eps=file.number("rms_norm_eps"), bias=True)
    layers = with_biases(options["layers"], qkv=bias, output=bias)
    options["norm"] = norm
    options["layers"] = with_experts(
        file,
        with_norms(layers, attention_norm=norm, mlp_norm=norm),
        count=file.integer("num_local_experts", 16),
        per_token=2,
        size=options["intermediate_size"],
        router=RouterPlan(kind="sparsemixer", jitter=file.number("router_jitter_noise", 0.01)),
    )
    options["output"] = OutputPlan(bias=file.boolean("lm_head_bias", False))
    config = ModelConfig(architecture=architecture, **options)
    return config.with_windows((file.optional_integer("sliding_window") or 0,) * config.num_layers)


def _rope(file: ConfigFile) -> RopeConfig:
    """Cosine and sine are multiplied by a factor that the file gives. Raises `ModelError` if it gives two."""
    rope = file.section("rope_scaling") or file.section("rope_parameters")
    if rope is None or not rope.has("short_mscale"):
        return read_rope(file)
    if rope.number("short_mscale") != rope.number("long_mscale"):
        raise ModelError(f"{rope.source}: a 'short_mscale' that is not 'long_mscale' is not supported")
    return read_rope(file, rope.reading({"attention_factor": "short_mscale"}))


FAMILY = Family(read_config, weight_names={**LLAMA_NAMES, **expert_names("block_sparse_moe", "w1", "w3", "w2")})
