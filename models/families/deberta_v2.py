"""DeBERTa 2 and 3 (arXiv 2006.03654, 2111.09543): BERT whose attention sees distances apart from contents."""

from dataclasses import replace

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.encoder import EncoderConfig, encoder_options
from jaxllm.models.families import bert
from jaxllm.models.families.family import HeadPlan
from jaxllm.models.layers.disentangled_attention import RelativePlan
from jaxllm.models.norm_plan import NormPlan

_KINDS = {"c2p", "p2c"}
"""Contents of queries with distances of keys, and the other way round."""


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """DeBERTa's configuration. Raises `ModelError` for options that released models do not use."""
    # Which head predicts masked tokens.
    file.ignore("legacy")
    options = encoder_options(file, positions=512)
    size = options["hidden_size"]
    for key in ("embedding_size", "pooler_hidden_size"):
        if file.integer(key, size) != size:
            raise file.wrong(key, f"the hidden size, {size}")
    if file.text("pooler_hidden_act", "gelu") != "gelu":
        raise file.wrong("pooler_hidden_act", "gelu")
    eps = file.number("layer_norm_eps", 1e-7)
    norm = replace(options["norm"], eps=eps)
    options["norm"] = norm
    options["layers"] = tuple(replace(layer, attention_norm=norm, mlp_norm=norm) for layer in options["layers"])
    return EncoderConfig(
        architecture=architecture,
        **options,
        token_types=file.integer("type_vocab_size", 0, minimum=0),
        learned_positions=file.boolean("position_biased_input", True),
        relative=_relative(file, options["max_position_embeddings"], norm),
    )


def _relative(file: ConfigFile, positions: int, norm: NormPlan) -> RelativePlan:
    """How distances count. 0 or less stands for a default, of the longest one and of buckets."""
    if not file.boolean("relative_attention", False):
        raise file.wrong("relative_attention", "true")
    kinds = _words(file, "pos_att_type")
    if not kinds <= _KINDS:
        raise file.wrong("pos_att_type", "of c2p and p2c")
    norms = _words(file, "norm_rel_ebd") - {"none"}
    if not norms <= {"layer_norm"}:
        raise file.wrong("norm_rel_ebd", "none or layer_norm")
    longest = max(file.integer("max_relative_positions", -1, minimum=-1), 0) or positions
    buckets = max(file.integer("position_buckets", -1, minimum=-1), 0)
    if buckets and not 4 <= buckets < 2 * (longest - 1):
        raise file.wrong("position_buckets", f"at least 4, and less than twice the longest distance, {longest}")
    return RelativePlan(
        span=buckets or longest,
        longest=longest if buckets else None,
        by_query="c2p" in kinds,
        by_key="p2c" in kinds,
        shares_projections=file.boolean("share_att_key", False),
        norm=norm if norms else None,
    )


def _words(file: ConfigFile, key: str) -> set[str]:
    """A list of words, or words with bars between them."""
    if not file.has(key):
        return set()
    if isinstance(file.values[key], list):
        return set(file.texts(key))
    return {word.strip() for word in file.text(key).lower().split("|") if word.strip()}


_ATTENTION = {
    **{f"attention.{name}": f"attention.self.{name}_proj" for name in ("query", "key", "value")},
    "attention.distance_key": "attention.self.pos_key_proj",
    "attention.distance_query": "attention.self.pos_query_proj",
}

FAMILY = replace(
    bert.FAMILY,
    read_config=read_config,
    weight_names={
        **bert.names("deberta."),
        **{f"layers.*.{ours}": f"deberta.encoder.layer.*.{theirs}" for ours, theirs in _ATTENTION.items()},
        "distances.table": "deberta.encoder.rel_embeddings",
        "distances.norm": "deberta.encoder.LayerNorm",
    },
    # Third versions come with what is left of their training; transformers does not load it either.
    ignored_tensors=("position_ids", "embeddings._weight", "position_embeddings.weight"),
    head=HeadPlan(dense=True, activation="gelu", bias=True),
    head_names={"dense": "pooler.dense", "out": "classifier"},
    other_heads=("cls.", "pooler.", "lm_predictions.", "mask_predictions.", "deberta.mask_predictions."),
    prefix="deberta.",
)
