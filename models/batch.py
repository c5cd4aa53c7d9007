"""The input of one forward pass."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import register_dataclass

from jaxllm.models.forward_context import ForwardContext
from jaxllm.pallas_kernels.low_rank import TokenSlots
from jaxllm.pallas_kernels.ragged_batch import NULL_PAGE, RaggedBatch
from jaxllm.pallas_kernels.recurrence.rows import OUT_OF_RANGE, DraftRows, StateRows
from jaxllm.pallas_kernels.segment_attention.segments import Segments


class GivenEmbeddings(NamedTuple):
    """Embeddings in place of tokens: `rows` [T, E]; a row counts where `is_given` (bool [T])."""

    rows: jax.Array
    is_given: jax.Array


@register_dataclass
@dataclass(frozen=True)
class Batch:
    """Tokens of one step: `token_ids` int32 [T], and where each of them sits.

    `slots` int32 [R] say where the states of each row lie, for layers that keep some. Without them nothing is kept.
    `given` are embeddings of tokens that have no id. `rotary_positions` int32 [T] or [3, T] are the positions by which
    queries and keys rotate, where these are not their places in the cache (`ragged.positions`). `added` [n, T, D] is
    added to what the first n layers give. `adapters` are the slots of the
    tokens' adapters, where the model has slots. `drafts` are those of the rows, where layers keep states and rows may
    have some. `cross_pages` int32 [R] are the first page of each row's sound, where the model hears.
    """

    token_ids: jax.Array
    ragged: RaggedBatch
    slots: jax.Array | None = None
    given: GivenEmbeddings | None = None
    rotary_positions: jax.Array | None = None
    added: jax.Array | None = None
    adapters: TokenSlots | None = None
    drafts: DraftRows | None = None
    cross_pages: jax.Array | None = None

    @property
    def context(self) -> ForwardContext:
        """The context of products about the tokens."""
        return ForwardContext(self.ragged.num_tokens, self.adapters)

    @property
    def state_rows(self) -> StateRows | None:
        """Where the states of the rows are."""
        if self.slots is None:
            return None
        lengths, starts = self.ragged.kv_lens, self.ragged.query_start
        is_row = lengths > 0
        # Out of range, and not clipped into it: what padding would write is dropped.
        slots = jnp.where(is_row, self.slots, OUT_OF_RANGE)
        return StateRows(slots, lengths == starts[1:] - starts[:-1], self.drafts)


class LayerPaging(NamedTuple):
    """A layer's view of a step: its page table, and the chunk that its attention stays within, 0 for none.

    Its pages are number `part` of the `shares` that each page of the table has, see `CachePlan`. Its heads are those
    of the model where they are 0.
    """

    table: int
    chunk: int = 0
    shares: int = 1
    part: int = 0
    num_heads: int = 0
    num_kv_heads: int = 0
    head_size: int = 0

    def of(self, ragged: RaggedBatch) -> RaggedBatch:
        """The batch with the layer's own pages in place of those of its table."""
        if self.shares == 1:
            return ragged
        return replace(ragged, page_table=ragged.page_table * self.shares + self.part)


def by_table(ragged: RaggedBatch, count: int) -> tuple[RaggedBatch, ...]:
    """The batch with each of the page tables [R, W] that lie side by side in its own, [R, count * W]."""
    if count == 1:
        return (ragged,)
    return tuple(replace(ragged, page_table=table) for table in jnp.split(ragged.page_table, count, axis=1))


def cross_batch(ragged: RaggedBatch, first_pages: jax.Array, num_keys: int, page_size: int) -> RaggedBatch:
    """The batch as cross attention has it: every token is a row of its own, the last of `num_keys`, and so sees all.

    The keys of a row are in the pages from `first_pages` int32 [R] on.
    """
    place = jnp.arange(len(ragged.token_rows) + 1, dtype=jnp.int32)
    is_token = place[:-1] < ragged.num_tokens
    pages = first_pages[ragged.token_rows][:, None] + jnp.arange(-(-num_keys // page_size), dtype=jnp.int32)
    return RaggedBatch(
        positions=jnp.where(is_token, num_keys - 1, 0),
        token_rows=jnp.where(is_token, place[:-1], 0),
        query_start=jnp.minimum(place, ragged.num_tokens),
        kv_lens=jnp.where(is_token, num_keys, 0),
        page_table=jnp.where(is_token[:, None], pages, NULL_PAGE),
        num_tokens=ragged.num_tokens,
        num_decodes=ragged.num_tokens,
        num_requests=ragged.num_tokens,
    )


@register_dataclass
@dataclass(frozen=True)
class TextMedia:
    """The rows of images in whole texts side by side, see `Batch`.

    `rotary_offsets` int32 [3, T] are the positions by which queries and keys rotate, less the places of tokens in their
    texts. `visible_until` int32 [T] is the end of the places that each token sees of its text.
    """

    given: GivenEmbeddings
    added: jax.Array | None = None
    rotary_offsets: jax.Array | None = None
    visible_until: jax.Array | None = None


@register_dataclass
@dataclass(frozen=True)
class PackedSequences:
    """Whole texts side by side, for models that keep nothing of them.

    `token_ids` int32 [T]; `token_types` int32 [T], 1 for those of the second of two texts that are read together.
    `adapters` are the slots of the tokens' adapters, where the model has slots. `media` are the rows of images, where
    the model sees.
    """

    token_ids: jax.Array
    token_types: jax.Array
    segments: Segments
    adapters: TokenSlots | None = None
    media: TextMedia | None = None

    @property
    def context(self) -> ForwardContext:
        """What products are told of the tokens."""
        return ForwardContext(adapters=self.adapters)
