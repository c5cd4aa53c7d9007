"""What stays on the devices of an engine from step to step.

Axis letters: T tokens, S slots, G page tables, W page-table width, E rows of images, D hidden size.
"""

from dataclasses import dataclass, field

import jax

from jaxllm.executor.draft_state import DraftState
from jaxllm.executor.sampler.rows import SamplingState
from jaxllm.models.cache import Cache


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StageState:
    """What stays on the devices of a stage of layers from step to step; donated, so that it is updated in place."""

    kv_cache: Cache
    page_table: jax.Array
    """int32 [S, G * W], pages of the request in each slot, in order, of one table after the other.

    `NULL_PAGE` where there is none yet. Where the request gave a page back, its entry may be another's page: no token
    sees what it holds.
    """
    media_pool: jax.Array | None = field(default=None, kw_only=True)
    """[E, n * D], rows of images, in the first stage: what stands in place of tokens, and what is added after the first
    n - 1 layers.

    Each data shard has all of them.
    """


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeviceState(StageState):
    """State of the stage that samples, which is the last one, or has all layers.

    Each data shard has its own part of every array; the parts are concatenated along the first axis.
    """

    sampling: SamplingState
    last_tokens: jax.Array
    """int32 [S], the token sampled last in each slot."""
    hidden: jax.Array
    """[largest T, D], hidden states of the last step, for log-probabilities of prompts.

    Where prompts may be embeddings, those of the next step replace them once nobody asks for them any more.
    """
    drafter_cache: Cache | None = None
    """What the model's drafter keeps of each token, in the pages that the model's first page table names."""
    drafts: DraftState | None = None
    """What that has guessed last, and how much of what it had guessed before was right."""

    @property
    def plain(self) -> "DeviceState":
        """What steps need in which the drafter has no part."""
        return self.with_drafts_of(None)

    def with_drafts_of(self, other: "DeviceState | None") -> "DeviceState":
        """This state with what the drafter keeps in another one, or without anything of it."""
        # In each step while the drafter rests: `dataclasses.replace` takes several times as long.
        return DeviceState(
            self.kv_cache, self.page_table, self.sampling, self.last_tokens, self.hidden,
            None if other is None else other.drafter_cache, None if other is None else other.drafts,
            media_pool=self.media_pool,
        )  # fmt: skip
