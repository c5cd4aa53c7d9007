"""DeepSeek V3.2 and GLM-5: DeepSeek V3 whose tokens see chosen keys, by an index in each layer.

DeepSeek's own code also multiplies index queries and keys by a Hadamard matrix, which changes no score. Its index
keys have 8 bits; as in transformers, here they have the type of the cache.
"""

from dataclasses import replace

from jaxllm.models.attention_plan import KeyIndexPlan
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import deepseek
from jaxllm.models.families.expert_groups import sigmoid_router
from jaxllm.models.families.family import Family, Names, further_layers


def read_v32(file: ConfigFile, architecture: str) -> ModelConfig:
    """DeepSeek V3.2's configuration."""
    file = file.reading(
        max_position_embeddings=163840,
        q_lora_rank=1536,
        n_group=8,
        topk_group=4,
        bos_token_id=0,
        index_n_heads=64,
        first_k_dense_replace=3,
    )
    return with_index(file, architecture, interleaved=False)


def read_glm5(file: ConfigFile, architecture: str) -> ModelConfig:
    """GLM-5's configuration, and GLM-5.2's, where layers share the choice of one before them."""
    file = file.reading(
        max_position_embeddings=202752,
        q_lora_rank=2048,
        rms_norm_eps=1e-5,
        n_group=1,
        topk_group=1,
        index_n_heads=32,
        first_k_dense_replace=3,
    )
    file.expect(indexer_rope_interleave=True, moe_router_dtype="float32")
    # Of use to drafts alone; and the size of rotated parts has a name of its own.
    file.ignore("index_share_for_mtp_iteration", "head_dim")
    config = with_index(file, architecture, interleaved=True)
    shared = shared_layers(file, config.num_layers)
    layers = zip(config.layers, shared, strict=True)
    return replace(config, layers=tuple(layer.attending(shares_choice=is_shared) for layer, is_shared in layers))


def shared_layers(file: ConfigFile, count: int) -> list[bool]:
    """For each layer whether it shares a choice: as the list of types says, else the pattern, else every so many."""
    if file.has("indexer_types"):
        file.ignore("index_topk_freq", "index_topk_pattern", "index_skip_topk_offset")
        key, kinds = "indexer_types", file.texts("indexer_types")
    elif file.has("index_topk_pattern"):
        file.ignore("index_topk_freq", "index_skip_topk_offset")
        key = "index_topk_pattern"
        is_text = isinstance(file.values[key], str)
        kinds = [_LETTERS.get(kind, kind) for kind in (file.text(key) if is_text else file.texts(key))]
    else:
        key, every = "index_topk_freq", file.integer("index_topk_freq", 1, minimum=0) or 1
        offset = file.integer("index_skip_topk_offset", 2, minimum=0)
        kinds = ["shared" if max(layer - offset + 1, 0) % every else "full" for layer in range(count)]
    if len(kinds) != count or set(kinds) - {"full", "shared"}:
        raise file.wrong(key, f"{count} times 'full' or 'shared'")
    if kinds[0] == "shared":
        raise file.wrong(key, "'full' for the first layer")
    return [kind == "shared" for kind in kinds]


_LETTERS = {"F": "full", "S": "shared"}


def with_index(
    file: ConfigFile, architecture: str, *, interleaved: bool, attention_interleaved: bool = True
) -> ModelConfig:
    """The configuration of a model with an index in each layer, whose heads pair neighbours if `interleaved`.

    Those of attention do if `attention_interleaved`.
    """
    file.expect(scoring_func="sigmoid", topk_method="noaux_tc", mlp_bias=False)
    file.expect(rope_interleave=attention_interleaved)
    expect_all(file, "layer_types", "indexed_attention")
    router = sigmoid_router(file, groups=None, scale=2.5)
    dense = deepseek.dense_layers(file, 3)
    config = deepseek.with_latent_experts(file, architecture, router, dense, interleaved=attention_interleaved)
    index = KeyIndexPlan(
        heads=file.integer("index_n_heads"),
        size=file.integer("index_head_dim", 128),
        top=file.integer("index_topk", 2048),
        interleaved=interleaved,
    )
    latent = config.latent
    assert latent is not None
    if latent.query_rank is None:
        raise file.wrong("q_lora_rank", "given: the index takes the latents of queries")
    if index.size < latent.rope_size:
        raise file.wrong("index_head_dim", f"at least 'qk_rope_head_dim' = {latent.rope_size}")
    return replace(config, layers=tuple(layer.attending(index=index) for layer in config.layers))


def expect_all(file: ConfigFile, key: str, kind: str) -> None:
    """Raise `ModelError` where a list with the kind of each layer has another one."""
    if file.has(key) and set(file.texts(key)) != {kind}:
        raise file.wrong(key, f"{kind!r} for every layer")


def weight_names(config: ModelConfig) -> Names:
    """Weight names, including those of the index."""
    index = "model.layers.*.self_attn.indexer"
    return {
        **deepseek.weight_names(config),
        "layers.*.attention.indexer.query": f"{index}.wq_b",
        "layers.*.attention.indexer.key": f"{index}.wk",
        "layers.*.attention.indexer.norm": f"{index}.k_norm",
        "layers.*.attention.indexer.weights": f"{index}.weights_proj",
    }


V32 = Family(read_v32, weight_names=weight_names, other_parts=further_layers)
GLM5 = Family(read_glm5, weight_names=weight_names, other_parts=further_layers)
