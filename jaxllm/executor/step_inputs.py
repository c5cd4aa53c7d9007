"""What a step takes of the host, packed into one int32 vector: a declaration for each field.

A declaration says how long a field is, which engines have it, and how the host fills it in. To give a step something
more for each row or token, add one to `STEP_INPUTS`, and read `inputs[name]` in `step_program.py`. The program of an
engine without a field does not have it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.packed_layout import PackedLayout
from jaxllm.executor.sampler.logprobs_mode import RAW
from jaxllm.executor.sampler.rows import FLOAT_FIELDS, INT_FIELDS
from jaxllm.requests.prompt_embeds import NO_TOKEN
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.table import RequestTable

Int32Array = npt.NDArray[np.int32]

FROM_DEVICE = -1
"""Input token id that stands for the token sampled last in the same slot, which the host may not know yet."""

FROM_EMBEDDINGS = NO_TOKEN
"""Input token id that stands for an embedding, which `set_embeddings` has put in the token's place."""


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

    @property
    def rows_at_once(self) -> int:
        """Rows of the page table that one call of `set_pages` writes: at most 16, and about 64 kB."""
        return max(1, min(16, 16384 // (self.num_tables * self.table_width)))

    def layout(self, bucket: Bucket) -> PackedLayout:
        """The packed input of a bucket."""
        sizes = {
            "T": bucket.tokens,
            "R": bucket.rows,
            "R+1": bucket.rows + 1,
            "G": self.num_tables,
            "ints": len(INT_FIELDS),
            "floats": len(FLOAT_FIELDS),
        }
        present = [each for each in STEP_INPUTS if each.is_present(self)]
        return PackedLayout({each.name: (tuple(sizes[axis] for axis in each.axes), each.dtype) for each in present})


@dataclass(frozen=True)
class HostStep:
    """A step of one data shard as the host knows it: what fields are filled in from.

    `samples` (bool [n]) are the rows that get a token. `sampling` are parameters of the rows, see `SamplingTable.pack`.
    """

    plan: StepPlan
    table: RequestTable
    samples: npt.NDArray[np.bool_]
    sampling: tuple[Int32Array, npt.NDArray[np.float32]]
    page_size: int
    slots_per_shard: int

    @cached_property
    def ends(self) -> Int32Array:
        """Where each row ends among the tokens, int32 [n]."""
        return np.cumsum(self.plan.num_new_tokens, dtype=np.int32)

    @cached_property
    def token_rows(self) -> Int32Array:
        """The row of each token, int32 [t]."""
        return np.repeat(np.arange(self.plan.num_rows, dtype=np.int32), self.plan.num_new_tokens)

    @cached_property
    def positions(self) -> Int32Array:
        """The position of each token in its sequence, int32 [t]."""
        # Where its row starts, plus its distance from the row's first token.
        offsets = self.plan.starts - (self.ends - self.plan.num_new_tokens)
        return np.arange(self.plan.num_tokens, dtype=np.int32) + offsets[self.token_rows]

    @cached_property
    def kv_lens(self) -> Int32Array:
        """The length of each row's sequence, with the new tokens, int32 [n]."""
        return self.plan.starts + self.plan.num_new_tokens


@dataclass(frozen=True)
class StepInput:
    """A field of the packed vector."""

    name: str
    axes: tuple[str, ...]
    """Of T tokens, R rows, G page tables; () is a number."""
    fill: Callable[[Any, HostStep], None]
    """Writes into the field, an array of zeros. Rows and tokens of a plan come first; what follows them is padding."""
    dtype: Any = np.int32
    is_present: Callable[[StepShape], bool] = lambda shape: True
    """Whether an engine's steps have it."""


def _fill_token_ids(field: Int32Array, step: HostStep) -> None:
    plan, table, num_decodes = step.plan, step.table, step.plan.num_decodes
    field[: plan.num_tokens] = table.token_ids[plan.slots[step.token_rows], step.positions]
    # The last token of a decode may still be on its way, from the step before this one.
    unknown = plan.starts[:num_decodes] >= table.num_tokens[plan.slots[:num_decodes]]
    field[:num_decodes][unknown] = FROM_DEVICE


def _fill_query_start(field: Int32Array, step: HostStep) -> None:
    rows = step.plan.num_rows
    field[1 : rows + 1] = step.ends
    field[rows + 1 :] = step.plan.num_tokens


def _fill_last_pages(field: Int32Array, step: HostStep) -> None:
    """Where each row's last token goes, in each of its tables."""
    columns = (step.kv_lens - 1) // step.page_size
    for number, pages in enumerate(field if field.ndim > 1 else (field,)):
        pages[: step.plan.num_rows] = step.table.block_table[step.plan.slots, columns + number * step.table.width]


def _fill_num_sampled(field: Int32Array, step: HostStep) -> None:
    """The rows after these get no token here."""
    every = step.samples is step.plan.samples
    field[...] = step.plan.num_rows if every else np.flatnonzero(step.samples).max(initial=-1) + 1


def _per_token(values: Callable[[HostStep], Int32Array]) -> Callable[[Int32Array, HostStep], None]:
    def fill(field: Int32Array, step: HostStep) -> None:
        field[: step.plan.num_tokens] = values(step)

    return fill


def _per_row(values: Callable[[HostStep], Int32Array]) -> Callable[[Int32Array, HostStep], None]:
    def fill(field: Int32Array, step: HostStep) -> None:
        field[: step.plan.num_rows] = values(step)

    return fill


def _whole(value: Callable[[HostStep], Any]) -> Callable[[Any, HostStep], None]:
    def fill(field: Any, step: HostStep) -> None:
        field[...] = value(step)

    return fill


STEP_INPUTS: Final = (
    StepInput("token_ids", ("T",), _fill_token_ids),
    StepInput("positions", ("T",), _per_token(lambda step: step.positions)),
    StepInput("token_rows", ("T",), _per_token(lambda step: step.token_rows)),
    StepInput("query_start", ("R+1",), _fill_query_start),
    StepInput("kv_lens", ("R",), _per_row(lambda step: step.kv_lens)),
    StepInput("slots", ("R",), _per_row(lambda step: step.plan.slots % step.slots_per_shard)),
    StepInput("last_pages", ("R",), _fill_last_pages, is_present=lambda shape: shape.num_tables == 1),
    StepInput("last_pages", ("G", "R"), _fill_last_pages, is_present=lambda shape: shape.num_tables > 1),
    StepInput("num_tokens", (), _whole(lambda step: step.plan.num_tokens)),
    StepInput("num_decodes", (), _whole(lambda step: step.plan.num_decodes)),
    StepInput("num_requests", (), _whole(lambda step: step.plan.num_rows)),
    StepInput("num_sampled", (), _fill_num_sampled),
    StepInput("sampling_ints", ("ints", "R"), _whole(lambda step: step.sampling[0])),
    StepInput("sampling_floats", ("floats", "R"), _whole(lambda step: step.sampling[1]), np.float32),
)


def sample_positions(query_start: jax.Array) -> jax.Array:
    """Which tokens of a step are sampled after, int32 [R]: the last one of each row, from where rows start [R + 1].

    Rows of padding sample after token 0, for nobody.
    """
    return jnp.maximum(query_start[1:] - 1, 0)


def host_sample_positions(plan: StepPlan) -> Int32Array:
    """The same on the host, for the rows of a plan, int32 [n]."""
    return np.cumsum(plan.num_new_tokens, dtype=np.int32) - 1
