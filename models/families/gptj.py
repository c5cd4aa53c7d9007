"""GPT-J and CodeGen: parallel blocks after one norm, rotary embedding of neighbours in a part of each head."""

from jaxllm.models.attention_plan import AttentionPlan, RopeConfig
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.tensor_source import fused
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families import gpt
from jaxllm.models.families.common import read_sizes
from jaxllm.models.families.family import Family, Names
from jaxllm.models.layers.activation import read_activation


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """GPT-J's configuration, and CodeGen's."""
    ends = {"bos_token_id": 50256, "eos_token_id": 50256}
    file = gpt.reading(file, gpt.KEYS, max_position_embeddings=2048, **ends)
    gpt.refuse(file, tie_word_embeddings=False, rotary=True, scale_attn_weights=True)
    file.ignore(*gpt.UNUSED)
    sizes = read_sizes(file)
    rotary_size = file.integer("rotary_dim", 64)
    if rotary_size % 2 or rotary_size > sizes["head_size"]:
        raise file.wrong("rotary_dim", f"even and at most {sizes['head_size']}")
    rope = RopeConfig(trained_length=sizes["max_position_embeddings"], rotary_size=rotary_size, interleaved=True)
    return gpt.parallel_model(
        file, architecture, AttentionPlan(rope=rope), read_activation(file, "activation_function", "gelu_new")
    )


def codegen_names(config: ModelConfig) -> Names:
    """Queries, values and keys lie together, in four parts: as many devices as CodeGen was trained on."""
    if config.hidden_size % CODEGEN_PARTS:
        raise ModelError(
            f"{config.architecture}: hidden size {config.hidden_size} is not a multiple of {CODEGEN_PARTS}"
        )
    rows = config.hidden_size // CODEGEN_PARTS
    wide = {f"layers.*.attention.{name}": rows for name in ("query", "value", "key")}
    return {**_OTHERS, **fused("transformer.h.*.attn.qkv_proj", wide, CODEGEN_PARTS)}


CODEGEN_PARTS = 4
_OTHERS: Names = {
    "embedding": "transformer.wte",
    "norm": "transformer.ln_f",
    "head": "lm_head",
    "layers.*.attention_norm": "transformer.h.*.ln_1",
    "layers.*.attention.output": "transformer.h.*.attn.out_proj",
    "layers.*.mlp.up": "transformer.h.*.mlp.fc_in",
    "layers.*.mlp.down": "transformer.h.*.mlp.fc_out",
}

FAMILY = Family(
    read_config,
    weight_names={
        **_OTHERS,
        "layers.*.attention.query": "transformer.h.*.attn.q_proj",
        "layers.*.attention.key": "transformer.h.*.attn.k_proj",
        "layers.*.attention.value": "transformer.h.*.attn.v_proj",
    },
    ignored_tensors=(*gpt.BUFFERS, ".attn.embed_positions"),
    prefix="transformer.",
)
CODEGEN = Family(
    read_config,
    weight_names=codegen_names,
    ignored_tensors=(*gpt.BUFFERS, ".attn.causal_mask"),
    prefix="transformer.",
)
