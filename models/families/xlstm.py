"""xLSTM: matrix memories with exponential gates, and MLPs."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import InOneAxis, Source
from jaxllm.models.config import ModelConfig
from jaxllm.models.families.family import Family, Names
from jaxllm.models.families.mamba2 import sizes_without_attention
from jaxllm.models.matrix_memory_plan import MatrixMemoryPlan
from jaxllm.models.mlp_plan import MLPPlan
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.plan import LayerPlan, OutputPlan

_HOW = (
    "autocast_kernel_dtype",
    "chunk_size",
    "chunkwise_kernel",
    "max_inference_chunksize",
    "mode",
    "return_last_states",
    "sequence_kernel",
    "step_kernel",
)
"""Options of how it is computed, not of what."""


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """XLSTM's configuration."""
    file.ignore(*_HOW)
    file.expect(use_bias=False, weight_mode="single", inference_state_dtype="float32", tie_word_embeddings=False)
    file.expect(norm_reduction_force_float32=True, add_out_norm=True)
    embedded = file.optional_integer("embedding_dim")
    hidden = file.optional_integer("hidden_size") or embedded or 4096
    file.expect(embedding_dim=hidden)
    file = file.but(hidden_size=hidden).reading(bos_token_id=0, eos_token_id=2)
    layers = file.optional_integer("num_hidden_layers") or 32
    count, heads = file.optional_integer("num_blocks") or layers, file.integer("num_heads", 8)
    keys, values = (int(hidden * file.positive(f"{part}_dim_factor", default)) for part, default in _FACTORS)
    for name, size in (("qk", keys), ("v", values)):
        if size < heads or size % heads:
            raise file.wrong(f"{name}_dim_factor", f"such that {heads} heads share {size} elements evenly")
    eps, every = file.number("norm_eps", 1e-6), file.integer("ffn_round_up_to_multiple_of", 64)
    size = int((hidden * file.positive("ffn_proj_factor", 2.667) + every - 1) // every) * every
    memory = MatrixMemoryPlan(
        heads=heads,
        key_size=keys // heads,
        value_size=values // heads,
        gate_cap=file.positive("gate_soft_cap", 15.0),
        eps=file.number("eps", 1e-6),
        norm=NormPlan(kind="layer", eps=eps),
    )
    norm = NormPlan(eps=eps)
    layer = LayerPlan(recurrence=memory, mlp=MLPPlan(), attention_norm=norm, mlp_norm=norm)
    sizes = sizes_without_attention(file, heads, keys // heads)
    return ModelConfig(
        architecture=architecture,
        **sizes | {"intermediate_size": size},
        layers=(layer,) * count,
        norm=norm,
        output=OutputPlan(soft_cap=file.positive("output_logit_soft_cap", 30.0)),
    )


_FACTORS = (("qk", 0.5), ("v", 1.0))
"""How many elements keys and values have of the hidden size, by default."""

_LAYER = "backbone.blocks.*"
_MEMORY = f"{_LAYER}.mlstm_layer"

NAMES: Names = {
    "embedding": "backbone.embeddings",
    "norm": "backbone.out_norm",
    "head": "lm_head",
    "layers.*.attention_norm": f"{_LAYER}.norm_mlstm",
    "layers.*.mlp_norm": f"{_LAYER}.norm_ffn",
    "layers.*.mlp.gate": f"{_LAYER}.ffn.proj_up_gate",
    "layers.*.mlp.up": f"{_LAYER}.ffn.proj_up",
    "layers.*.mlp.down": f"{_LAYER}.ffn.proj_down",
    "layers.*.recurrence.query": f"{_MEMORY}.q",
    "layers.*.recurrence.key": f"{_MEMORY}.k",
    "layers.*.recurrence.value": f"{_MEMORY}.v",
    "layers.*.recurrence.output_gate": f"{_MEMORY}.ogate_preact",
    "layers.*.recurrence.input_gate": f"{_MEMORY}.igate_preact",
    "layers.*.recurrence.forget_gate": f"{_MEMORY}.fgate_preact",
    "layers.*.recurrence.norm": Source(f"{_MEMORY}.multihead_norm", InOneAxis()),
    "layers.*.recurrence.output": f"{_MEMORY}.out_proj",
}

FAMILY = Family(read_config, weight_names=NAMES, prefix="backbone.")
