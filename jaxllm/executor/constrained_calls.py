"""Calls that choose the tokens of constrained rows after their step, and their place in its result."""

import jax
import numpy as np
import numpy.typing as npt

from jaxllm.executor.compile.compilations import CompilationWatch
from jaxllm.executor.device_calls import DeviceCalls
from jaxllm.executor.packed_layout import PackedLayout
from jaxllm.executor.program_table import SAMPLE_CONSTRAINED
from jaxllm.executor.sampler.constrained import ConstrainedRows, constrained_layout
from jaxllm.executor.sampler.logprobs import Logprobs
from jaxllm.executor.sampler.row_numbers import NEUTRAL_FLOATS
from jaxllm.executor.sampler.table import SamplingTable
from jaxllm.executor.step_inputs import draft_places
from jaxllm.executor.step_packer import StepPacker, output_lengths
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.table import RequestTable

Int32Array = npt.NDArray[np.int32]


class ConstrainedCalls:
    """Packs such rows and their masks, and calls the executable that chooses, for the steps of one runner."""

    def __init__(
        self, calls: DeviceCalls, packer: StepPacker, sampling: SamplingTable, watch: CompilationWatch, shards: int
    ) -> None:
        self._calls, self._packer, self._sampling, self._watch = calls, packer, sampling, watch
        self._layout = constrained_layout(calls.state.sampling, shards)

    def rows(self, plan: StepPlan, table: RequestTable, which: npt.NDArray[np.bool_]) -> ConstrainedRows:
        """What must be known of these rows of a plan (bool [n]) when their tokens are chosen."""
        rows = np.flatnonzero(which).astype(np.int32)
        steps, hidden = output_lengths(plan, table), self._packer.last_hidden(plan)
        places = np.zeros_like(rows)
        if plan.num_drafts is not None:
            chosen = np.repeat(which, 1 + plan.num_drafts)
            rows = np.repeat(rows, 1 + plan.num_drafts[rows])
            places = draft_places(plan)[chosen]
            hidden = hidden - plan.num_drafts
        slots, count = plan.slots[rows], len(rows)
        ints, floats = self._sampling.pack(slots, steps[rows] + places, np.ones(count, np.bool_), count)
        hidden = (hidden[rows] + places).astype(np.int32)
        return ConstrainedRows(
            rows, places, hidden, ints, floats, wants_logprobs=bool(self._sampling.wants_logprobs(slots).any())
        )

    def choose(self, constrained: ConstrainedRows, which: Int32Array, masks: Int32Array) -> None:
        """Choose the tokens of rows that the last step left out: int32 [n] of `constrained`, and their masks [n, W]."""
        _, views = self._layout.host_buffer()
        at_once = len(views["hidden_rows"])
        with self._watch.watching("constrained rows"):
            for parts in self._packer.by_shard(constrained.hidden[which], at_once):
                own = []
                for part in parts:
                    packed, views = pack_constrained(self._layout, self._packer, constrained, which[part])
                    views["masks"][: len(part)] = masks[part]
                    own.append(packed)
                packed = np.concatenate(own)
                sampled = self._calls.call(SAMPLE_CONSTRAINED, packed)
                places = np.concatenate([shard * at_once + np.arange(len(part)) for shard, part in enumerate(parts)])
                constrained.chosen.append((which[np.concatenate(parts)], places, sampled))
                for leaf in jax.tree.leaves(
                    (sampled.token_ids, sampled.logprobs if constrained.wants_logprobs else None)
                ):
                    leaf.copy_to_host_async()


def pack_constrained(
    layout: PackedLayout, packer: StepPacker, constrained: ConstrainedRows, part: Int32Array
) -> tuple[Int32Array, dict[str, np.ndarray]]:
    """The packed input of a shard's `part` of the rows, int32 [n], and its fields: all but masks are filled in."""
    packed, views = layout.host_buffer()
    count = len(part)
    views["hidden_rows"][:count] = packer.local_hidden(constrained.hidden[part])
    views["num_rows"][...] = count
    views["sampling_ints"][:, :count] = packer.local_slots(constrained.ints[:, part])
    views["sampling_floats"][:, :count] = constrained.floats[:, part]
    views["sampling_floats"][:, count:] = NEUTRAL_FLOATS
    return packed, views


def with_chosen(
    token_ids: Int32Array, logprobs: Logprobs | None, constrained: ConstrainedRows, firsts: Int32Array | None = None
) -> tuple[Int32Array, Logprobs | None]:
    """The tokens of a step with those that were chosen later, and log-probabilities if any row wanted them.

    `firsts` int32 [n] are the places of the rows' tokens, where they have several.
    """
    token_ids = token_ids.copy()
    for which, places, sampled in constrained.chosen:
        rows = constrained.rows[which]
        if firsts is not None:
            rows = firsts[rows] + constrained.places[which]
        token_ids[rows] = np.asarray(sampled.token_ids)[places]
        if constrained.wants_logprobs:
            found = jax.tree.map(lambda leaf, places=places: leaf[places], jax.device_get(sampled.logprobs))
            logprobs = _placed(logprobs, len(token_ids), rows, found)
    return token_ids, logprobs


def _placed(logprobs: Logprobs | None, total: int, rows: Int32Array, found: Logprobs) -> Logprobs:
    """`logprobs`, or zeros, of `total` rows, with `found` for `rows`."""

    def place(new: np.ndarray, old: np.ndarray | None = None) -> np.ndarray:
        values = np.zeros((total, *new.shape[1:]), new.dtype) if old is None else old.copy()
        values[rows] = new
        return values

    placed: Logprobs = jax.tree.map(place, *((found,) if logprobs is None else (found, logprobs)))
    return placed
