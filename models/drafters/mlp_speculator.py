"""MLP speculators (arXiv 2404.19124): stages of small products guess, each from the state of the one before it.

The first state is the model's hidden state of the last token. A stage joins the state with the embedding of the token
that was guessed before, and its own output layer guesses the next one. Nothing is kept of earlier tokens. Checkpoints
are those of IBM ("MLPSpeculatorPreTrainedModel"); their formula is that of `fms-extras`.

Axis letters: R rows, D hidden size, V vocabulary.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.batch import Batch
from jaxllm.models.cache import Cache
from jaxllm.models.checkpoint.loading import load_into
from jaxllm.models.checkpoint.model_config import IRRELEVANT, config_file
from jaxllm.models.checkpoint.names import CheckpointNames
from jaxllm.models.config import ModelConfig
from jaxllm.models.drafters.guessing import Ahead, likeliest
from jaxllm.models.errors import ModelError
from jaxllm.models.families.family import Names
from jaxllm.models.forward_context import ForwardContext
from jaxllm.models.layers.embedding import Embedding, vocab_rows
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import RMSNorm, make_norm
from jaxllm.models.layers.parameter import parameter
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.plan import EmbeddingPlan
from jaxllm.models.sharding import constrain, sharding
from jaxllm.pallas_kernels.linear import can_pack

if TYPE_CHECKING:
    from jaxllm.models.causal_lm import CausalLM
    from jaxllm.models.checkpoint.loading import WeightSource

ARCHITECTURE, MODEL_TYPE = "MLPSpeculatorPreTrainedModel", "mlp_speculator"
NAMES: Names = {"embeddings.*": "emb.*", "projections.*": "proj.*", "norms.*": "ln.*", "heads.*": "head.*"}
EPS = 1e-6
_OWN_KEYS = (
    "n_candidates",
    "num_lookahead_tokens",
    "top_k_tokens_per_head",
    "base_model_name_or_path",
    "num_attention_heads",
    "num_hidden_layers",
    "hidden_size",
)
"""About trees of guesses, and what other engines want to find in every configuration."""


@dataclass(frozen=True)
class MlpSpeculatorPlan:
    """A `DrafterPlan` of `stages` stages, whose states have `size`; those of the model have `target_size`."""

    stages: int
    size: int
    target_size: int
    dtype: str
    is_tied: bool = False
    """Whether all stages have the same parameters, but for the projection of the first one."""
    scales_input: bool = False
    taps: tuple[int, ...] = ()
    is_apart: bool = True
    num_kept: int = 0

    def make(self, config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype) -> nnx.Module:
        """See `DrafterPlan`."""
        return MlpSpeculator(self, config, self.forward(options), dtype)

    def cached_layers(self, config: ModelConfig) -> None:
        """None: it keeps nothing."""

    def forward(self, options: ForwardOptions) -> ForwardOptions:
        """Those of the model, with its kernels where they take the sizes."""
        is_native = options.native_matmul and all(can_pack(size, self.dtype) for size in (self.size, self.target_size))
        return replace(options, adapters=None, drafter=None, native_matmul=is_native)

    def names(self, config: ModelConfig) -> Names:
        """None: it is apart."""
        return {}

    def load(
        self, drafter: nnx.Module, source: "WeightSource", progress: Callable[[int, int], None] | None
    ) -> nnx.Module:
        """See `DrafterPlan`. Raises `ModelError`."""
        # Some checkpoints have what stages share once for each of them.
        others = ("emb.", "proj.", "ln.", "head.") if self.is_tied else ()
        names = CheckpointNames(names=NAMES, renamed={"speculator.": ""}, ignored_beginnings=others)
        return load_into(drafter, source, names, progress=progress)


def is_mlp_speculator(folder: Path) -> bool:
    """Whether a folder has such a drafter. Raises `ModelError` where it has no configuration."""
    values = config_file(folder).values
    names = values.get("architectures")
    return values.get("model_type") == MODEL_TYPE or (isinstance(names, list) and ARCHITECTURE in names)


def read_mlp_speculator(folder: Path, target: ModelConfig, dtype: str) -> MlpSpeculatorPlan:
    """The plan of the drafter in a folder, with parameters in `dtype`. Raises `ModelError` for one of another model."""
    file = config_file(folder)
    names = file.values.get("architectures") or [ARCHITECTURE]
    if ARCHITECTURE not in names:
        raise ModelError(f"{folder}: {names} is not supported, only {ARCHITECTURE}")
    vocab_size, hidden_size = file.integer("vocab_size"), file.integer("emb_dim")
    if (vocab_size, hidden_size) != (target.vocab_size, target.hidden_size):
        raise ModelError(
            f"{folder}: this drafter is for a model with hidden size {hidden_size} and {vocab_size} tokens, and the "
            f"model has {target.hidden_size} and {target.vocab_size}"
        )
    plan = MlpSpeculatorPlan(
        stages=file.integer("n_predict"),
        # 0 stands for the model's.
        size=file.integer("inner_dim", 0, minimum=0) or hidden_size,
        target_size=hidden_size,
        dtype=dtype,
        is_tied=file.boolean("tie_weights", False),
        scales_input=file.boolean("scale_input", False),
    )
    file.ignore(*_OWN_KEYS)
    file.check_all_used(IRRELEVANT)
    return plan


class ShiftedNorm(RMSNorm):
    """By root mean square, times `weight`, plus `bias`."""

    def __init__(self, size: int, options: ForwardOptions, dtype: jnp.dtype) -> None:
        place = sharding(options.mesh, None)
        super().__init__(parameter((size,), dtype, place), NormPlan(eps=EPS))
        self.bias = parameter((size,), dtype, place)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise `x` [..., size]; the type stays."""
        return super().__call__(x) + self.bias[...].astype(x.dtype)


class MlpSpeculator(nnx.Module):
    """The stages. Of tied ones there are two projections, and one of all else."""

    begins_with_sampled = True

    def __init__(self, plan: MlpSpeculatorPlan, config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype) -> None:
        self.plan = plan
        # Those that all guesses have in common are made once.
        self.own_guesses = 1 if plan.is_tied else plan.stages
        own = replace(config, hidden_size=plan.size, embedding=EmbeddingPlan())
        sizes = [plan.target_size, *(plan.size for _ in range(plan.stages - 1))][: 2 if plan.is_tied else None]
        stages, rows = range(self.own_guesses), vocab_rows(config, options)
        self.embeddings = nnx.List([Embedding(own, options, dtype=dtype) for _ in stages])
        self.projections = nnx.List(
            [Linear(size, plan.size, bias=False, dtype=dtype, axes=(None, None), options=options) for size in sizes]
        )
        self.norms = nnx.List([ShiftedNorm(plan.size, options, dtype) for _ in stages])
        axes, vocab_size = ("vocab", "hidden"), config.vocab_size + rows.padding
        self.heads = nnx.List(
            [
                Linear(plan.size, vocab_size, bias=False, dtype=dtype, axes=axes, options=options, rows=rows)
                for _ in stages
            ]
        )
        self.first_norm = make_norm(NormPlan(eps=EPS, weight=False), dtype=dtype, options=options)
        self.vocab_size, self.mesh = config.vocab_size, options.mesh

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
        """See `Drafter`: states [R, D] of the model, or as wide as its own, where those are wider."""
        states = hidden[lasts]
        if self.plan.scales_input:
            states = self.first_norm(states) * math.sqrt(0.5)
        return self._padded(states), cache

    def go_on(
        self, model: "CausalLM", ahead: Ahead, number: int, states: jax.Array, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        """See `Drafter`: states as of `follow`."""
        plan, batch = self.plan, ahead.batch()
        # By the last stage the model's hidden state is half of the whole, as it was in training.
        old_part = 0.5 ** (0.5 / plan.stages)
        new_part = math.sqrt((1 - old_part**2) * plan.size / 2)
        states = states[:, : plan.size if number else plan.target_size]
        projection = self.projections[min(number, len(self.projections) - 1)]
        own = min(number, len(self.norms) - 1)
        embedded = self.embeddings[own](batch.token_ids)
        joined = projection(states, batch.context) * old_part + embedded * new_part
        return self._padded(jax.nn.gelu(self.norms[own](joined), approximate=False)), cache

    def guess(self, model: "CausalLM", number: int, states: jax.Array, num_rows: jax.Array) -> jax.Array:
        """See `Drafter`."""
        head = self.heads[min(number, len(self.heads) - 1)]
        logits = constrain(
            head.product(states[:, : self.plan.size], ForwardContext(num_rows)), self.mesh, None, "vocab"
        )
        # Rows beyond the vocabulary, which make it divide over devices, are zeros.
        is_token = jnp.arange(logits.shape[1], dtype=jnp.int32) < self.vocab_size
        return likeliest(jnp.where(is_token, logits, -jnp.inf))

    def _padded(self, states: jax.Array) -> jax.Array:
        """States with zeros up to the width that those of all stages have."""
        width = max(self.plan.size, self.plan.target_size)
        return jnp.pad(states, ((0, 0), (0, width - states.shape[1])))
