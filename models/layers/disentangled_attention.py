"""Disentangled attention (DeBERTa, arXiv 2006.03654): scores of contents, and of contents with distances."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxllm.models.config import ModelConfig
from jaxllm.models.forward_context import ALL_ROWS, ForwardContext
from jaxllm.models.layers.embedding import Table
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.pallas_kernels.segment_attention.api import segment_attention
from jaxllm.pallas_kernels.segment_attention.relative import RelativeScores
from jaxllm.pallas_kernels.segment_attention.segments import Segments


@dataclass(frozen=True, kw_only=True)
class RelativePlan:
    """How attention sees the distance of two tokens: queries, keys or both meet a table with a row for each.

    The table has `span` rows for each direction. With `longest`, distances beyond half of them share rows by their
    logarithm, up to this one. All layers have the table, normalised if there is a `norm`; they multiply its rows with
    matrices of their own, or (`shares_projections`) with those for contents.
    """

    span: int
    longest: int | None = None
    by_query: bool = True
    by_key: bool = True
    shares_projections: bool = False
    norm: NormPlan | None = None


def distance_rows(plan: RelativePlan, reach: int) -> np.ndarray:
    """Row of the table for each distance from -`reach` to `reach`, int32."""
    distance = np.arange(-reach, reach + 1, dtype=np.int32)
    if plan.longest is not None:
        half, far = plan.span // 2, np.abs(distance)
        # In float32 throughout, as in transformers: what is rounded up depends on it.
        growth = np.log(np.float32((plan.longest - 1) / half))
        steps = np.log(np.maximum(far, 1).astype(np.float32) / np.float32(half)) / growth * np.float32(half - 1)
        shared = np.sign(distance) * (np.ceil(steps).astype(np.int32) + half)
        distance = np.where(far <= half, distance, shared)
    return np.clip(distance + plan.span, 0, 2 * plan.span - 1).astype(np.int32)


class DistanceRows(NamedTuple):
    """The table [2 * span, D], and which row a distance has, see `RelativeScores.buckets`."""

    table: jax.Array
    buckets: jax.Array


class Distances(nnx.Module):
    """The table that all layers have."""

    def __init__(self, config: ModelConfig, plan: RelativePlan, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        self.plan, self.reach = plan, config.max_position_embeddings
        self.table = Table(2 * plan.span, config.hidden_size, dtype, options)
        self.norm = make_norm(plan.norm, config.hidden_size, dtype=dtype, options=options)

    def __call__(self) -> DistanceRows:
        """Its rows."""
        rows = self.norm(self.table(jnp.arange(2 * self.plan.span, dtype=jnp.int32)))
        return DistanceRows(rows, jnp.asarray(distance_rows(self.plan, self.reach)))


class DisentangledAttention(nnx.Module):
    """Attention of every token to its whole text, see `RelativePlan`."""

    def __init__(self, config: ModelConfig, plan: RelativePlan, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        size = config.hidden_size
        linear = partial(Linear, size, size, bias=True, dtype=dtype, axes=(None, None), options=options)
        self.query, self.key, self.value, self.output = linear(), linear(), linear(), linear()
        has_own = not plan.shares_projections
        self.distance_key = linear() if has_own and plan.by_query else None
        self.distance_query = linear() if has_own and plan.by_key else None
        self.plan, self.head_size = plan, config.head_size
        # What is multiplied with distances belongs to no token, so that it has no one adapter.
        of_distances = (self.distance_key or self.key, self.distance_query or self.query)
        for project, is_used in zip(of_distances, (plan.by_query, plan.by_key), strict=True):
            project.takes_adapters = not is_used

    def __call__(self, x: jax.Array, segments: Segments, context: ForwardContext, distances: DistanceRows) -> jax.Array:
        """Map [T, D] to [T, D]."""
        query, key, value = (self._heads(project, x, context) for project in (self.query, self.key, self.value))
        plan, by_query, by_key = self.plan, None, None
        if plan.by_query:
            by_query = _products(query, self._heads(self.distance_key or self.key, distances.table))
        if plan.by_key:
            by_key = _products(key, self._heads(self.distance_query or self.query, distances.table))
        # As many terms as there are have a variance of one together.
        scale = (self.head_size * (1 + plan.by_query + plan.by_key)) ** -0.5
        relative = RelativeScores(by_query, by_key, distances.buckets)
        attended = segment_attention(query, key, value, segments, scale=scale, relative=relative)
        return self.output(attended.reshape(x.shape), context)

    def _heads(self, project: Linear, x: jax.Array, context: ForwardContext = ALL_ROWS) -> jax.Array:
        return project(x, context).reshape(len(x), -1, self.head_size)


def _products(heads: jax.Array, rows: jax.Array) -> jax.Array:
    """[T, N, B] of heads [T, N, H] with those of the table's rows [B, N, H]."""
    return jnp.einsum("tnh,bnh->tnb", heads, rows, preferred_element_type=jnp.float32).astype(heads.dtype)
