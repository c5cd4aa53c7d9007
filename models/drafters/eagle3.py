"""EAGLE-3 (arXiv 2503.01840): one layer reads what a model has between three of its layers, and guesses what follows.

A product joins the three hidden states of a token to one. The layer attends from that, next to the embedding of the
token after it. Its output before the last norm takes the place of the joined states for a further guess. Its vocabulary
may be a part of the model's. Checkpoints are those of its authors and of the library `speculators`.

Axis letters: T tokens, R rows, D hidden size.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxllm.models.attention_plan import AttentionPlan
from jaxllm.models.batch import Batch
from jaxllm.models.cache import Cache
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.loading import load_into
from jaxllm.models.checkpoint.model_config import config_file
from jaxllm.models.checkpoint.names import CheckpointNames
from jaxllm.models.config import ModelConfig
from jaxllm.models.decoder import Decoder
from jaxllm.models.drafters.guessing import Ahead, likeliest
from jaxllm.models.errors import ModelError
from jaxllm.models.families import llama
from jaxllm.models.families.family import Names
from jaxllm.models.forward_context import ForwardContext, LayerContext
from jaxllm.models.layers.attention import Attention
from jaxllm.models.layers.embedding import Embedding
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.mlp import make_mlp
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.parameter import parameter
from jaxllm.models.mlp_plan import MLPPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.plan import LayerPlan
from jaxllm.models.sharding import constrain, sharding

if TYPE_CHECKING:
    from jaxllm.models.causal_lm import CausalLM
    from jaxllm.models.checkpoint.loading import WeightSource

LAYER = "layers.0"
NAMES: Names = {
    "joint": "fc",
    "embedding": "embed_tokens",
    "norm": "norm",
    "head": "lm_head",
    "layers.*.embedding_norm": f"{LAYER}.input_layernorm",
    "layers.*.hidden_norm": f"{LAYER}.hidden_norm",
    "layers.*.attention.query": f"{LAYER}.self_attn.q_proj",
    "layers.*.attention.key": f"{LAYER}.self_attn.k_proj",
    "layers.*.attention.value": f"{LAYER}.self_attn.v_proj",
    "layers.*.attention.output": f"{LAYER}.self_attn.o_proj",
    "layers.*.mlp_norm": f"{LAYER}.post_attention_layernorm",
    "layers.*.mlp.gate": f"{LAYER}.mlp.gate_proj",
    "layers.*.mlp.up": f"{LAYER}.mlp.up_proj",
    "layers.*.mlp.down": f"{LAYER}.mlp.down_proj",
}
RENAMED = {"midlayer.": "layers.0.", "model.midlayer.": "layers.0.", "model.": ""}
_INTEGERS: Mapping[str, np.dtype[Any]] = {"I64": np.dtype(np.int64), "I32": np.dtype(np.int32)}
_OWN_KEYS = (
    "draft_vocab_size", "target_hidden_size", "norm_before_residual", "eagle_config", "num_hidden_layers",
    "eagle_aux_hidden_state_layer_ids", "speculators_*", "transformer_layer_config", "has_no_defaults_at_init",
)  # fmt: skip


@dataclass(frozen=True)
class Eagle3Plan:
    """A `DrafterPlan`. Hidden states of size `target_size`, one of each of the `taps`, become one of the layer's."""

    config: ModelConfig
    taps: tuple[int, ...]
    target_size: int
    draft_vocab_size: int
    norms_residual: bool = False
    """Whether the layer adds to the normed joint states."""
    has_embedding: bool = False
    """Whether it has an embedding of its own, in place of the model's."""
    attention: str = "xla"
    is_apart: bool = True
    num_kept: int = 0

    def make(self, config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype) -> nnx.Module:
        """See `DrafterPlan`."""
        return Eagle3Head(self, self.forward(options), dtype)

    def cached_layers(self, config: ModelConfig) -> ModelConfig:
        """The one layer."""
        return self.config

    def forward(self, options: ForwardOptions) -> ForwardOptions:
        """Those of the model; its layer has an input of another size than its output, so nothing can stack it."""
        options = replace(options, adapters=None, drafter=None, cache_groups=False, attention=self.attention)
        return replace(options, stack="loop", native_matmul=False)

    def names(self, config: ModelConfig) -> Names:
        """None: it is apart."""
        return {}

    def load(
        self, drafter: nnx.Module, source: "WeightSource", progress: Callable[[int, int], None] | None
    ) -> nnx.Module:
        """See `DrafterPlan`. Raises `ModelError`."""
        names = CheckpointNames(
            names=NAMES, renamed=RENAMED, ignored=("d2t", "t2d", "embed_tokens.weight", ".inv_freq")
        )
        path = ("offsets", "values")
        given: dict[tuple[str | int, ...], np.ndarray] = {}
        if self.draft_vocab_size != self.config.vocab_size:
            given[path] = self._offsets(source)
        return load_into(drafter, source, names, given=given, progress=progress)

    def _offsets(self, source: "WeightSource") -> np.ndarray:
        """How much greater the model's number of each token is than the drafter's own."""
        size, most = self.draft_vocab_size, self.config.vocab_size
        if not isinstance(source, Checkpoint):
            return np.zeros(size, np.int32)
        found = {tensor.name: tensor for tensor in source.tensors}
        if "d2t" not in found:
            raise ModelError(f"tensor 'd2t' is missing: the drafter has {size} of the model's {most} tokens")
        tensor = found["d2t"]
        if tensor.dtype not in _INTEGERS or tensor.shape != (size,):
            raise ModelError(f"tensor 'd2t' is {list(tensor.shape)} of {tensor.dtype}; it must be {size} integers")
        offsets = np.empty(size, _INTEGERS[tensor.dtype])
        tensor.read_bytes(offsets.view(np.uint8), 0)
        numbers = offsets.astype(np.int64) + np.arange(size)
        if numbers.min() < 0 or numbers.max() >= most:
            raise ModelError(f"tensor 'd2t' leads to token {numbers.max()}, but the model has only {most} tokens")
        return offsets.astype(np.int32)


def is_eagle3(folder: Path) -> bool:
    """Whether a folder has such a drafter. Raises `ModelError` where it has no configuration."""
    values = config_file(folder).values
    names = values.get("architectures")
    kind = values.get("speculators_model_type")
    return kind == "eagle3" or (isinstance(names, list) and any("eagle3" in str(name).lower() for name in names))


def read_eagle3(folder: Path, target: ModelConfig) -> Eagle3Plan:
    """The plan of the drafter in a folder. Raises `ModelError` for another kind, or one of another model."""
    whole = config_file(folder)
    inner = whole.values.get("transformer_layer_config")
    # The library `speculators` has the layer's configuration in a part of its own.
    file = ConfigFile(inner, whole.source) if isinstance(inner, dict) else whole
    file.ignore(*_OWN_KEYS)
    whole.ignore(*_OWN_KEYS)
    layers = file.integer("num_hidden_layers", 1)
    if layers != 1:
        raise ModelError(f"{folder}: EAGLE-3 with {layers} layers is not supported, only with one")
    config = llama.read_config(file, "LlamaForCausalLM")
    (layer,) = config.layers
    assert isinstance(layer.attention, AttentionPlan)
    attention = replace(layer.attention, input_size=2 * config.hidden_size)
    options = whole.section("eagle_config")
    key = "eagle_aux_hidden_state_layer_ids"
    taps = whole.values.get(key) or (None if options is None else options.values.get(key))
    if taps is not None and not isinstance(taps, list):
        raise whole.wrong(key, "a list of integers")
    count = target.num_layers
    taps = tuple(taps or (2, count // 2, count - 3))
    if any(type(tap) is not int or not 0 <= tap <= count for tap in taps):
        raise ModelError(f"{folder}: it reads layers {list(taps)} of a model that has {count}")
    own_size = whole.integer("target_hidden_size") if whole.has("target_hidden_size") else config.hidden_size
    if own_size != target.hidden_size or config.vocab_size != target.vocab_size:
        raise ModelError(
            f"{folder}: this drafter is for a model with hidden size {own_size} and {config.vocab_size} tokens, and "
            f"the model has {target.hidden_size} and {target.vocab_size}"
        )
    checkpoint = Checkpoint(folder)
    has_embedding = any(tensor.name.endswith("embed_tokens.weight") for tensor in checkpoint.tensors)
    if not has_embedding and config.hidden_size != target.hidden_size:
        raise ModelError(f"{folder}: tensor 'embed_tokens.weight' is missing: the model's embedding has another size")
    return Eagle3Plan(
        config=replace(config, layers=(replace(layer, attention=attention),)),
        taps=taps,
        target_size=target.hidden_size,
        draft_vocab_size=whole.integer("draft_vocab_size") if whole.has("draft_vocab_size") else config.vocab_size,
        norms_residual=whole.boolean("norm_before_residual", False),
        has_embedding=has_embedding,
    )


class Eagle3Layer(nnx.Module):
    """Attention from an embedding next to a hidden state, then an MLP; the hidden state is what they add to."""

    def __init__(self, config: ModelConfig, plan: LayerPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        def norm() -> nnx.Module:
            return make_norm(plan.attention_norm, config.hidden_size, dtype=dtype, options=options)

        assert isinstance(plan.attention, AttentionPlan)
        assert isinstance(plan.mlp, MLPPlan)
        self.embedding_norm, self.hidden_norm, self.mlp_norm = norm(), norm(), norm()
        self.attention = Attention(config, plan.attention, options, dtype=dtype)
        self.mlp = make_mlp(config, plan.mlp, dtype=dtype, options=options)
        self.norms_residual = False

    def __call__(self, x: jax.Array, cache: jax.Array, context: LayerContext) -> tuple[jax.Array, jax.Array]:
        """Map `x` [T, 2 * D], embeddings and hidden states side by side, to [T, D]."""
        embedded, hidden = jnp.split(x, 2, axis=1)
        normed = self.hidden_norm(hidden)
        mixed, cache = self.attention(jnp.concatenate([self.embedding_norm(embedded), normed], axis=1), cache, context)
        after = mixed + (normed if self.norms_residual else hidden)
        return after + self.mlp(self.mlp_norm(after), context.forward), cache


class Eagle3Head(Decoder):
    """The layer, what joins the hidden states before it, and the output layer."""

    begins_with_sampled = False
    own_guesses = 0

    def __init__(self, plan: Eagle3Plan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        def make_layer(config: ModelConfig, layer: LayerPlan, options: ForwardOptions, dtype: jnp.dtype) -> Eagle3Layer:
            made = Eagle3Layer(config, layer, options, dtype)
            made.norms_residual = plan.norms_residual
            return made

        config = plan.config
        super().__init__(config, options, dtype, make_layer)
        size = config.hidden_size
        joined = len(plan.taps) * plan.target_size
        self.joint = Linear(joined, size, bias=False, dtype=dtype, axes=(None, None), options=options)
        self.embedding = Embedding(config, options, dtype=dtype) if plan.has_embedding else None
        self.norm = make_norm(config.norm, size, dtype=dtype, options=options)
        self.head = Linear(size, plan.draft_vocab_size, bias=False, dtype=dtype, axes=(None, None), options=options)
        is_part = plan.draft_vocab_size != config.vocab_size
        place = sharding(options.mesh, None)
        self.offsets = Offsets(parameter((plan.draft_vocab_size,), jnp.dtype("int32"), place)) if is_part else None

    def follow(
        self,
        model: "CausalLM",
        batch: Batch,
        after: jax.Array,
        lasts: jax.Array,
        hidden: jax.Array,
        tapped: jax.Array,
        cache: Cache,
    ) -> tuple[jax.Array, Cache]:
        """See `Drafter`."""
        states = self.joint(tapped, batch.context)
        states, cache = self._read(model, replace(batch, token_ids=after), states, cache)
        return states[lasts], cache

    def go_on(
        self, model: "CausalLM", ahead: Ahead, number: int, states: jax.Array, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        """See `Drafter`: hidden states before the norm, [R, D]."""
        return self._read(model, ahead.batch(), states, cache)

    def _read(self, model: "CausalLM", batch: Batch, states: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
        """Hidden states before the norm, [T, D], of tokens, from those before them."""
        embedded = model.embedded(batch) if self.embedding is None else self.embedding(batch.token_ids)
        x = jnp.concatenate([embedded, states.astype(embedded.dtype)], axis=1)
        x, cache = self.layers(x, self.layer_inputs(batch, cache), cache)
        return constrain(x, self.options.mesh, None, "hidden"), cache

    def guess(self, model: "CausalLM", number: int, states: jax.Array, num_rows: jax.Array) -> jax.Array:
        """See `Drafter`."""
        own = likeliest(self.head(self.norm(states), ForwardContext(num_rows)))
        return own if self.offsets is None else own + self.offsets.values[own]


class Offsets(nnx.Module):
    """How much greater the model's number of each token is than the drafter's own: `values` int32 [V]."""

    def __init__(self, values: nnx.Param[jax.Array]) -> None:
        self.values = values
