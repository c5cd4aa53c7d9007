"""MiniMax-Text-01 and M1: lightning attention in most layers, residuals that are normalised, experts in all."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import Fused, OfOneElement, Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.common import FULL, layer_types, read_llama, with_experts
from jaxllm.models.families.family import LLAMA_NAMES, Family, Names, expert_names
from jaxllm.models.layers.activation import read_activation
from jaxllm.models.mlp_plan import RouterPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import NormedResidualPlan
from jaxllm.models.recurrent_plan import LightningPlan

LINEAR = "linear_attention"
_DEFAULTS = {"num_key_value_heads": 8, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 1e6}


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """MiniMax's configuration."""
    names = {"num_local_experts": "num_experts"}
    file = file.reading(names, **_DEFAULTS, bos_token_id=1, eos_token_id=2)
    # How many tokens transformers computes at once.
    file.ignore("block_size")
    options = read_llama(file)
    count, window = len(options["layers"]), file.optional_integer("sliding_window") or 0
    types = layer_types(file, count, [LINEAR if layer % 2 else FULL for layer in range(count)], other=LINEAR)
    lightning = LightningPlan(
        heads=options["num_heads"],
        head_size=options["head_size"],
        activation=read_activation(file, "hidden_act", "silu"),
        norm=NormPlan(eps=1e-6),
    )
    plain = options["layers"][0].attending(window=window)
    plain = replace(plain, attention_residual=_residual(file, "full_attn"), mlp_residual=_residual(file, "mlp"))
    linear = replace(plain, recurrence=lightning, attention_residual=_residual(file, "linear_attn"))
    options["layers"] = with_experts(
        file,
        [plain if kind == FULL else linear for kind in types],
        count=file.integer("num_local_experts", 8),
        per_token=file.integer("num_experts_per_tok", 2),
        size=options["intermediate_size"],
        router=RouterPlan(normalised=True),
    )
    return ModelConfig(architecture=architecture, **options)


def _residual(file: ConfigFile, block: str) -> NormedResidualPlan:
    """The factors of a kind of blocks."""
    keep, add = (file.number(f"{block}_{name}_factor", 1.0) for name in ("alpha", "beta"))
    return NormedResidualPlan(keep=keep, add=add)


def weight_names(config: ModelConfig) -> Names:
    """A head of lightning attention has its query, key and value side by side, and the checkpoint its decays."""
    block, names = "model.layers.*.self_attn", {**LLAMA_NAMES, **expert_names("block_sparse_moe", "w1", "w3", "w2")}
    sizes = (config.head_size,) * 3
    parts = {
        f"layers.*.recurrence.{name}": Source(f"{block}.qkv_proj", Fused(sizes, part, config.num_heads))
        for part, name in enumerate(("query", "key", "value"))
    }
    return {
        **names,
        **parts,
        "layers.*.recurrence": Source(block, OfOneElement(2), endings={"slopes": ".slope_rate"}),
        "layers.*.recurrence.gate": f"{block}.output_gate",
        "layers.*.recurrence.norm": f"{block}.norm",
        "layers.*.recurrence.output": f"{block}.out_proj",
    }


FAMILY = Family(
    read_config,
    weight_names=weight_names,
    ignored_tensors=(".rotary_emb.inv_freq", ".query_decay", ".key_decay", ".diagonal_decay"),
)
