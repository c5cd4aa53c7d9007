"""What a step takes of the host, packed into one int32 vector: a declaration for each field.

A declaration says how long a field is, which engines have it, and how the host fills it in. To give a step something
more for each row or token, add one to `STEP_INPUTS`, and read `inputs[name]` in `step_program.py`. The program of an
engine without a field does not have it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.packed_layout import PackedLayout
from jaxllm.executor.sampler.logprobs_mode import RAW
from jaxllm.executor.sampler.row_numbers import FLOAT_FIELDS
from jaxllm.executor.sampler.rows import INT_FIELDS
from jaxllm.models.options import AdapterShape
from jaxllm.pallas_kernels.ragged_batch import NULL_PAGE
from jaxllm.requests.prompt_embeds import NO_TOKEN
from jaxllm.scheduler.plan import FIRST_UNKNOWN, StepPlan
from jaxllm.scheduler.spans import visible_ends
from jaxllm.scheduler.table import RequestTable

if TYPE_CHECKING:
    from jaxllm.models.drafters.plan import DrafterPlan

Int32Array = npt.NDArray[np.int32]

FROM_DEVICE = -1
"""Input token id that stands for the token sampled last in the same slot, which the host may not know yet."""

FROM_EMBEDDINGS = NO_TOKEN
"""Input token id that stands for an embedding, which `set_embeddings` has put in the token's place."""

FROM_DRAFTS = FIRST_UNKNOWN
"""Input token id that stands for the first guess of the device for the same slot, the one below for the second..."""


@dataclass(frozen=True)
class StepShape:
    """What all step executables of an engine have in common."""

    table_width: int
    """Pages in one page table of a request."""
    page_size: int
    max_logprobs: int
    sample_rows: int
    """Rows whose logits are computed at a time; the last block may be partly padding."""
    sampling: str = "xla"
    """How tokens are chosen, an implementation of `choose_tokens`."""
    logprobs_mode: str = RAW
    """Which numbers stand alongside tokens, see `jaxllm.executor.sampler.logprobs_mode`."""
    num_tables: int = 1
    """Page tables of a request, which lie side by side."""
    shards: int = 1
    """Data shards. All else is of one of them, and so is a `Bucket`."""
    takes_embeddings: bool = False
    """Whether prompts may be embeddings."""
    sees_images: bool = False
    """Whether rows of the media pool may stand in place of tokens."""
    hears: bool = False
    """Whether every row has a window of sound."""
    has_grid_positions: bool = False
    """Whether such rows turn by their places in an image."""
    sees_spans: bool = False
    """Whether tokens may see later ones of their span."""
    adapters: AdapterShape | None = None
    """Slots for adapters, if there are any."""
    max_drafts: int = 0
    """Most drafts of a row; the step samples after each of them as well."""
    drafter: "DrafterPlan | None" = None
    """What on the device makes drafts of the tokens after those of a step, if anything does."""
    keeps_states: bool = False
    """Whether there are recurrent layers."""

    @property
    def plain(self) -> "StepShape":
        """The shape of steps that neither check nor make drafts, nor begin with any."""
        # Recurrent layers keep inputs of drafts, and steps of their rows in one way.
        return replace(self, drafter=None, max_drafts=self.max_drafts if self.keeps_states else 0)

    @property
    def replays_drafts(self) -> bool:
        """Whether a step begins with the drafts of the one before it that were right."""
        return self.keeps_states and self.max_drafts > 0

    @property
    def rows_at_once(self) -> int:
        """Rows of the page table that one call of `set_pages` writes: at most 16, and about 64 kB."""
        return max(1, min(16, 16384 // (self.num_tables * self.table_width)))

    def num_sampled(self, bucket: Bucket) -> int:
        """Places that a bucket has for tokens to be sampled: N."""
        return min(bucket.tokens, bucket.rows * (1 + self.max_drafts)) if self.max_drafts else bucket.rows

    def layout(self, bucket: Bucket) -> PackedLayout:
        """The packed input of a bucket."""
        sizes = {
            "T": bucket.tokens,
            "R": bucket.rows,
            "R+1": bucket.rows + 1,
            "N": self.num_sampled(bucket),
            "G": self.num_tables,
            "parts": 3,
            "ints": len(INT_FIELDS),
            "floats": len(FLOAT_FIELDS),
        }
        present = [each for each in STEP_INPUTS if each.is_present(self)]
        return PackedLayout({each.name: (tuple(sizes[axis] for axis in each.axes), each.dtype) for each in present})


class HostStep:
    """A step of one data shard as the host knows it: what fields are filled in from.

    There is an attribute for each field that every engine has. Rows and tokens of the plan come first in a field; what
    follows them is padding. A row samples after its last token, and one with drafts also after each token from the
    last known one on.
    """

    def __init__(
        self,
        plan: StepPlan,
        table: RequestTable,
        bucket: Bucket,
        samples: npt.NDArray[np.bool_],
        sampling: tuple[Int32Array, npt.NDArray[np.float32]],
        *,
        page_size: int,
        slots_per_shard: int,
    ) -> None:
        """The rows in `samples` (bool [n]) get a token; `sampling` are their parameters, see `SamplingTable.pack`."""
        slots, counts = plan.slots, plan.num_new_tokens
        rows, tokens, decodes = plan.num_rows, plan.num_tokens, plan.num_decodes
        ends = np.cumsum(counts)
        self.plan = plan
        self.num_tokens, self.num_decodes, self.num_requests = tokens, decodes, rows
        # The rows after these get no token here.
        self.num_sampled = rows if samples is plan.samples else np.flatnonzero(samples).max(initial=-1) + 1
        if plan.num_drafts is not None:
            self.num_sampled = int((1 + plan.num_drafts[: self.num_sampled]).sum())
        self.token_rows = np.repeat(np.arange(rows, dtype=np.int32), counts)
        # Position of a token: where its row starts, plus its distance from the row's first token.
        offsets = plan.starts - (ends - counts)
        self.positions = np.arange(tokens, dtype=np.int32) + offsets[self.token_rows]
        self.token_ids = table.token_ids[slots[self.token_rows], self.positions]
        # The last token of a decode may still be on its way, from the step before this one.
        unknown = plan.starts[:decodes] >= table.num_tokens[slots[:decodes]]
        self.token_ids[:decodes][unknown] = FROM_DEVICE
        if plan.num_drafts is not None:
            # So may be the token before the first draft.
            drafted = np.flatnonzero(plan.num_drafts)
            unknown = plan.starts[drafted] >= table.num_tokens[slots[drafted]]
            self.token_ids[(ends - counts)[drafted[unknown]]] = FROM_DEVICE
        self.query_start = np.zeros(bucket.rows + 1, np.int32)
        self.query_start[1 : rows + 1] = ends
        self.query_start[rows + 1 :] = tokens
        self.kv_lens = plan.starts + counts
        self.slots = slots % slots_per_shard
        # The page of each row's last token: int32 [n], or [G, n] with several tables.
        columns = (self.kv_lens - 1) // page_size
        self.last_pages = table.block_table[slots, columns]
        if table.block_table.shape[1] > table.width:
            firsts = np.arange(0, table.block_table.shape[1], table.width)
            self.last_pages = table.block_table[slots, columns + firsts[:, None]]
        self.sampling_ints, self.sampling_floats = sampling
        self._table, self._page_size = table, page_size

    @property
    def media_rows(self) -> Int32Array:
        """1 + the row of the media pool in place of each token, 0 for none: int32 [tokens]."""
        rows = self._table.media_rows
        assert rows is not None
        return rows[self.plan.slots[self.token_rows], self.positions]

    @property
    def cross_pages(self) -> Int32Array:
        """The first page of each row's sound: int32 [n]."""
        pages = self._table.cross_pages
        assert pages is not None
        return pages[self.plan.slots]

    @property
    def rotary_offsets(self) -> Int32Array:
        """See `RotaryOffsets.of`."""
        offsets = self._table.rotary_offsets
        assert offsets is not None
        return offsets.of(self.plan.slots, self.token_rows, self.positions)

    @property
    def visible_until(self) -> Int32Array:
        """The end of the positions that each token sees: int32 [tokens]."""
        return visible_ends(self.plan, self.positions)

    @property
    def adapter_slots(self) -> Int32Array:
        """The slot of each row's adapter, -1 for none: int32 [n]."""
        return self._table.adapter_slots[self.plan.slots]

    @property
    def adapter_starts(self) -> Int32Array:
        """The first position of each row that has its adapter: int32 [n]."""
        return self._table.adapter_starts[self.plan.slots]

    @property
    def sample_positions(self) -> Int32Array:
        """See `host_sample_positions`."""
        return host_sample_positions(self.plan)

    @property
    def next_ids(self) -> Int32Array:
        """The known token after each row's last, where the row does not sample that: int32 [n]."""
        plan, known = self.plan, self._table.token_ids
        ends = np.minimum(plan.starts + plan.num_new_tokens, known.shape[1] - 1)
        return np.maximum(known[plan.slots, ends], 0)

    @property
    def next_pages(self) -> Int32Array:
        """The page after that of each row's last token in the first page table, as far as it is there: int32 [n]."""
        columns = (self.kv_lens - 1) // self._page_size + 1
        pages = self._table.block_table[self.plan.slots, np.minimum(columns, self._table.width - 1)]
        return np.where(columns < self._table.width, pages, NULL_PAGE)

    @property
    def num_unknown(self) -> Int32Array:
        """How many drafts each row's last step had, if the host does not know how many were accepted: int32 [n]."""
        plan = self.plan
        return np.zeros(0, np.int32) if plan.num_unknown is None else plan.num_unknown

    @property
    def draft_steps(self) -> int:
        """How many drafts of each row the step makes for the one after it; -1: the drafter does not read its tokens."""
        return self.plan.draft_steps if self.plan.is_followed else -1

    @property
    def num_preceding(self) -> Int32Array:
        """How many drafts of its row are before each token to sample: int32 [n]."""
        return draft_places(self.plan)

    @property
    def num_drafts(self) -> Int32Array:
        """Drafts of each row: int32 [n]."""
        plan = self.plan
        return np.zeros(plan.num_rows, np.int32) if plan.num_drafts is None else plan.num_drafts

    @property
    def num_replayed(self) -> Int32Array:
        """Drafts of each row's last step that its states begin with: int32 [n]."""
        plan = self.plan
        return np.zeros(plan.num_rows, np.int32) if plan.num_replayed is None else plan.num_replayed


@dataclass(frozen=True)
class StepInput:
    """A field of the packed vector."""

    name: str
    axes: tuple[str, ...]
    """Axes of T tokens, R rows, N tokens to sample, G page tables; () for a scalar."""
    dtype: Any = np.int32
    is_present: Callable[[StepShape], bool] = lambda shape: True
    """Whether an engine's steps have it."""
    source: Callable[[HostStep], Any] | None = None
    """What is filled in; None: the attribute of `HostStep` of this name."""


STEP_INPUTS: Final = (
    StepInput("token_ids", ("T",)),
    StepInput("positions", ("T",)),
    StepInput("token_rows", ("T",)),
    StepInput("query_start", ("R+1",)),
    StepInput("kv_lens", ("R",)),
    StepInput("slots", ("R",)),
    StepInput("last_pages", ("R",), is_present=lambda shape: shape.num_tables == 1),
    StepInput("last_pages", ("G", "R"), is_present=lambda shape: shape.num_tables > 1),
    StepInput("media_rows", ("T",), is_present=lambda shape: shape.sees_images),
    StepInput("cross_pages", ("R",), is_present=lambda shape: shape.hears),
    StepInput("rotary_offsets", ("parts", "T"), is_present=lambda shape: shape.has_grid_positions),
    StepInput("visible_until", ("T",), is_present=lambda shape: shape.sees_spans),
    StepInput("adapter_slots", ("R",), is_present=lambda shape: shape.adapters is not None),
    StepInput("adapter_starts", ("R",), is_present=lambda shape: shape.adapters is not None),
    StepInput("num_tokens", ()),
    StepInput("num_decodes", ()),
    StepInput("num_requests", ()),
    StepInput("num_sampled", ()),
    StepInput("sample_positions", ("N",), is_present=lambda shape: shape.max_drafts > 0),
    StepInput("num_preceding", ("N",), is_present=lambda shape: shape.max_drafts > 0),
    StepInput("next_ids", ("R",), is_present=lambda shape: shape.drafter is not None),
    StepInput("next_pages", ("R",), is_present=lambda shape: shape.drafter is not None),
    StepInput("num_unknown", ("R",), is_present=lambda shape: shape.drafter is not None),
    StepInput("draft_steps", (), is_present=lambda shape: shape.drafter is not None),
    StepInput("num_replayed", ("R",), is_present=lambda shape: shape.replays_drafts),
    StepInput("num_drafts", ("R",), is_present=lambda shape: shape.replays_drafts),
    StepInput("sampling_ints", ("ints", "N")),
    StepInput("sampling_floats", ("floats", "N"), np.float32),
)


def fill(inputs: Sequence[StepInput], fields: Mapping[str, npt.NDArray[Any]], step: HostStep) -> None:
    """Fill in the fields of these inputs, which are zeros."""
    # In one loop: a call of a function for each field would cost more than what it does.
    for each in inputs:
        value = getattr(step, each.name) if each.source is None else each.source(step)
        field = fields[each.name]
        if len(each.axes) == 1:
            field[: len(value)] = value
        elif each.axes:
            field[..., : value.shape[-1]] = value
        else:
            field[()] = value


def sample_positions(query_start: jax.Array) -> jax.Array:
    """Which tokens of a step are sampled after, int32 [R]: the last one of each row, from where rows start [R + 1].

    Rows of padding sample after token 0, for nobody.
    """
    return jnp.maximum(query_start[1:] - 1, 0)


def host_sample_positions(plan: StepPlan) -> Int32Array:
    """The sample positions on the host, for the rows of a plan: int32 [n], more where rows have drafts."""
    lasts = np.cumsum(plan.num_new_tokens, dtype=np.int32) - 1
    if plan.num_drafts is None:
        return lasts
    return np.repeat(lasts - plan.num_drafts, 1 + plan.num_drafts) + draft_places(plan)


def draft_places(plan: StepPlan) -> Int32Array:
    """0, 1 and so on to its number of drafts for each row of a plan: int32 [n], n the tokens it samples."""
    if plan.num_drafts is None:
        return np.zeros(plan.num_rows, np.int32)
    counts = 1 + plan.num_drafts
    return np.arange(counts.sum(), dtype=np.int32) - np.repeat(np.cumsum(counts, dtype=np.int32) - counts, counts)
