"""Runs steps on the device: packs a plan into one array, calls the executable of its bucket, reads the tokens back."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from jaxllm.request import Request
from jaxllm.runtime.programs.background import BackgroundCompilation
from jaxllm.runtime.programs.buckets import Bucket, Buckets
from jaxllm.runtime.programs.compilations import CompilationWatch
from jaxllm.runtime.programs.executables import Executables
from jaxllm.runtime.programs.first_run import first_run
from jaxllm.runtime.sampling.constrained import ConstrainedRows, constrained_layout
from jaxllm.runtime.sampling.listed import ListedRows, listed_layout, packed_rows
from jaxllm.runtime.sampling.logprobs import Logprobs
from jaxllm.runtime.sampling.sampler import SampledRows
from jaxllm.runtime.sampling.table import NEUTRAL_FLOATS, SamplingTable
from jaxllm.runtime.step import FROM_DEVICE, PROMPT_LOGPROB_ROWS, DeviceState, StepShape
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.table import RequestTable

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True)
class PromptChunk:
    """Log-probabilities of the prompt tokens at positions `begin` to `end`, each given those before it."""

    request: Request
    begin: int
    end: int
    blocks: list[Logprobs]
    """On the device until collected, 64 positions each."""


@dataclass(frozen=True)
class Dispatched:
    """A step that is on its way: device arrays that `Runner.collect` waits for."""

    plan: StepPlan
    bucket: Bucket
    sampled: SampledRows
    wants_logprobs: bool
    prompts: list[PromptChunk]
    constrained: ConstrainedRows | None = None
    """Rows whose tokens `Runner.choose` chooses."""
    listed: ListedRows | None = None

    @property
    def wanted(self) -> tuple[jax.Array, Logprobs | None]:
        """What the host wants of it."""
        return self.sampled.token_ids, self.sampled.logprobs if self.wants_logprobs else None


@dataclass
class StepResult:
    """A finished step, on the host. Rows are those of the plan."""

    token_ids: Int32Array
    """Row after row, [sum of counts]."""
    logprobs: Logprobs | None
    """NumPy arrays [n, ...], when a row asked for them."""
    prompts: list[PromptChunk]
    """With NumPy arrays."""
    bucket: Bucket
    """The shape it ran in."""
    listed: dict[int, np.ndarray] | None = None
    """Log-probabilities of listed tokens by row, when a row asked for them: float32 [K]."""
    counts: Int32Array | None = None
    """Tokens of each row, [n]: the sampled one and those that follow it without a choice. None: one each."""


class Runner:
    """Owns the parameters and the device state, and calls the executables."""

    def __init__(
        self,
        *,
        parameters: tuple[jax.Array, ...],
        state: DeviceState,
        executables: Executables,
        buckets: Buckets,
        shape: StepShape,
        sampling: SamplingTable,
        watch: CompilationWatch,
        background: BackgroundCompilation | None = None,
    ) -> None:
        self.watch = watch
        self._background = background
        self._parameters = parameters
        self._state = state
        self._executables = executables
        self._buckets = buckets
        self._shape = shape
        self._layouts = {bucket: shape.layout(bucket) for bucket in buckets.all}
        self._constrained_layout = constrained_layout(state.sampling)
        self._listed_layout = listed_layout(state.last_tokens.shape[0])
        # Only outputs that follow a grammar get tokens by other ways than one step each.
        self._has_chosen = False
        self._sampling = sampling

    @property
    def num_shapes(self) -> int:
        """Step shapes there are."""
        return len(self._buckets.all)

    def warm_up(self, buckets: Iterable[Bucket]) -> None:
        """Run an empty step of each bucket, so that everything that happens once has happened. Raises like `first_run`.

        They must be made, or be those that are made when they are met.
        """
        for bucket in buckets:
            first_run(
                self._executables, f"the first step of {bucket}", partial(self._run_empty, bucket), self._renew_state
            )

    def _run_empty(self, bucket: Bucket) -> None:
        packed, _ = self._layouts[bucket].host_buffer()
        sampled, self._state = self._executables.get(bucket.name)(self._parameters, self._state, packed)
        jax.block_until_ready((sampled, self._state))

    def _renew_state(self) -> None:
        """Make the state again, empty: a step that failed may have taken it."""
        for leaf in jax.tree.leaves(self._state):
            leaf.delete()
        self._state = self._executables.get("empty_state")()

    def must_wait(self, table: RequestTable) -> bool:
        """Whether the next step needs tokens on the host that are still on the device.

        What a row may sample can depend on its text so far, as with bad words of several tokens. Such a step starts
        when the one before is collected. (Grammars need not wait: see `choose`.)
        """
        return self._sampling.must_wait(table)

    def dispatch(self, plan: StepPlan, table: RequestTable) -> Dispatched:
        """Start a step, right after it was scheduled. Returns at once; the device works while the host goes on.

        The rows in `StepPlan.constrained` get no token from it: `choose` must give them one before the next step is
        dispatched.
        """
        bucket = self._bucket_for(plan.num_tokens)
        # Outside the watch: with `enforce_eager` a shape is compiled when it is first met, on purpose.
        executable = self._executables.get(bucket.name)
        constrained = plan.constrained
        samples = plan.samples if constrained is None else plan.samples & ~constrained
        with self.watch.watching(bucket):
            if plan.copies is not None:
                self._copy_pages(plan.copies)
            self._place_pages(plan, table)
            self._update_sampling(plan, table)
            packed = self._pack(plan, table, bucket, samples)
            sampled, self._state = executable(self._parameters, self._state, packed)
            prompts = list(self._prompt_logprobs(plan, table))
        wants_logprobs = bool(self._sampling.wants_logprobs(plan.slots[samples]).any())
        rest = None if constrained is None else self._constrained_rows(plan, table, constrained)
        listed = None
        if wants_logprobs or (rest is not None and rest.wants_logprobs):
            listed = self._listed_logprobs(plan)
        step = Dispatched(plan, bucket, sampled, wants_logprobs, prompts, rest, listed)
        # The way to the host begins when the step ends, not when somebody asks.
        for leaf in jax.tree.leaves(step.wanted):
            leaf.copy_to_host_async()
        return step

    def _bucket_for(self, num_tokens: int) -> Bucket:
        """The shape of the next step: the smallest that fits, as far as it is compiled."""
        if self._background is not None:
            if not self._background.complete:
                return self._buckets.fit_among(num_tokens, self._executables.has_step)
            self._background = None
        return self._buckets.fit(num_tokens)

    def _constrained_rows(self, plan: StepPlan, table: RequestTable, which: npt.NDArray[np.bool_]) -> ConstrainedRows:
        rows = np.flatnonzero(which).astype(np.int32)
        slots, count = plan.slots[rows], len(rows)
        ints, floats = self._sampling.pack(slots, _steps(plan, table)[rows], np.ones(count, np.bool_), count)
        hidden = np.cumsum(plan.num_new_tokens, dtype=np.int32)[rows] - 1
        return ConstrainedRows(
            rows, hidden, ints, floats, wants_logprobs=bool(self._sampling.wants_logprobs(slots).any())
        )

    def choose(self, constrained: ConstrainedRows, which: Int32Array, masks: Int32Array) -> None:
        """Choose the tokens of rows that the last step left out: int32 [n] of `constrained`, and their masks [n, W]."""
        self._has_chosen = True
        _, views = self._constrained_layout.host_buffer()
        at_once = len(views["hidden_rows"])
        executable = self._executables.get("sample_constrained")
        with self.watch.watching("constrained rows"):
            for first in range(0, len(which), at_once):
                part = which[first : first + at_once]
                packed = self._pack_constrained(constrained, part, masks[first : first + at_once])
                state = self._state
                sampled, sampling, last_tokens = executable(
                    self._parameters, state.hidden, state.sampling, state.last_tokens, packed
                )
                self._state = replace(state, sampling=sampling, last_tokens=last_tokens)
                constrained.chosen.append((constrained.rows[part], sampled))
                for leaf in jax.tree.leaves(
                    (sampled.token_ids, sampled.logprobs if constrained.wants_logprobs else None)
                ):
                    leaf.copy_to_host_async()

    def _pack_constrained(self, constrained: ConstrainedRows, part: Int32Array, masks: Int32Array) -> Int32Array:
        packed, views = self._constrained_layout.host_buffer()
        count = len(part)
        views["hidden_rows"][:count] = constrained.hidden[part]
        views["num_rows"][...] = count
        views["sampling_ints"][:, :count] = constrained.ints[:, part]
        views["sampling_floats"][:, :count] = constrained.floats[:, part]
        views["sampling_floats"][:, count:] = NEUTRAL_FLOATS
        views["masks"][:count] = masks
        return packed

    def collect(self, step: Dispatched) -> StepResult:
        """Wait for a step and bring its tokens to the host, and log-probabilities only where asked for."""
        rows = step.plan.num_rows
        token_ids, logprobs = jax.tree.map(lambda leaf: leaf[:rows], jax.device_get(step.wanted))
        if step.constrained is not None:
            token_ids, logprobs = _with_chosen(token_ids, logprobs, step.constrained)
        prompts = [
            PromptChunk(chunk.request, chunk.begin, chunk.end, jax.device_get(chunk.blocks)) for chunk in step.prompts
        ]
        listed = None if step.listed is None else step.listed.collect()
        return StepResult(token_ids, logprobs, prompts, step.bucket, listed)

    def close(self) -> None:
        """Free the device memory; the runner cannot be used any more."""
        if self._background is not None:
            self._background.stop()
        self.watch.close()
        for leaf in jax.tree.leaves((self._parameters, self._state)):
            leaf.delete()
        self._executables.close()

    def _place_pages(self, plan: StepPlan, table: RequestTable) -> None:
        """Write the pages that are new by several, or of slots that moved, into the device's table."""
        size, width = self._shape.rows_at_once, self._shape.table_width
        page_table = self._state.page_table
        changed = plan.moved
        if plan.admitted:
            changed = [request.slot for request in plan.admitted] + changed
        if self._has_chosen and plan.num_decodes < plan.num_rows:
            changed = changed + _grown_by_pages(plan, table, self._shape.page_size)
        for first in range(0, len(changed), size):
            some = changed[first : first + size]
            slots, pages = np.full(size, -1, np.int32), np.zeros((size, width), np.int32)
            slots[: len(some)] = some
            pages[: len(some)] = table.block_table[some]
            page_table = self._executables.get("set_pages")(page_table, slots, pages)
        self._state = replace(self._state, page_table=page_table)

    def _copy_pages(self, copies: Int32Array) -> None:
        """Copy pages (from, to), int32 [n, 2], behind all steps so far."""
        pages = np.zeros((2, len(self._state.last_tokens)), np.int32)
        pages[:, : len(copies)] = copies.T
        copy = self._executables.get("copy_pages")
        self._state = replace(self._state, kv_cache=copy(self._state.kv_cache, pages, np.int32(len(copies))))

    def _update_sampling(self, plan: StepPlan, table: RequestTable) -> None:
        """Take over the parameters of newly admitted requests, and what the outputs so far change about others."""
        sampling = self._state.sampling
        for request in plan.admitted:
            dense = self._sampling.set(request)
            if dense is not None:
                sampling = self._executables.get("set_row")(sampling, np.int32(request.slot), *dense)
        for update in self._sampling.updates(table, plan.slots[plan.samples], _steps(plan, table)[plan.samples]):
            sampling = self._executables.get("set_bias")(sampling, *update)
        self._state = replace(self._state, sampling=sampling)

    def _pack(self, plan: StepPlan, table: RequestTable, bucket: Bucket, samples: npt.NDArray[np.bool_]) -> Int32Array:
        """The packed input of a plan, in which the rows in `samples` (bool [n]) get a token."""
        packed, views = self._layouts[bucket].host_buffer()
        rows, tokens = plan.num_rows, plan.num_tokens
        ends = np.cumsum(plan.num_new_tokens)
        token_rows = np.repeat(np.arange(rows, dtype=np.int32), plan.num_new_tokens)
        # Position of a token: where its row starts, plus its distance from the row's first token.
        offsets = plan.starts - (ends - plan.num_new_tokens)
        positions = np.arange(tokens, dtype=np.int32) + offsets[token_rows]
        views["token_ids"][:tokens] = table.token_ids[plan.slots[token_rows], positions]
        # The last token of a decode may still be on its way, from the step before this one.
        unknown = plan.starts[: plan.num_decodes] >= table.num_tokens[plan.slots[: plan.num_decodes]]
        views["token_ids"][: plan.num_decodes][unknown] = FROM_DEVICE
        views["positions"][:tokens] = positions
        views["token_rows"][:tokens] = token_rows
        views["query_start"][1 : rows + 1] = ends
        views["query_start"][rows + 1 :] = tokens
        kv_lens = plan.starts + plan.num_new_tokens
        views["kv_lens"][:rows] = kv_lens
        views["slots"][:rows] = plan.slots
        views["last_pages"][:rows] = table.block_table[plan.slots, (kv_lens - 1) // self._shape.page_size]
        views["num_tokens"][...] = tokens
        views["num_decodes"][...] = plan.num_decodes
        views["num_requests"][...] = rows
        views["num_sampled"][...] = rows if samples is plan.samples else np.flatnonzero(samples).max(initial=-1) + 1
        ints, floats = self._sampling.pack(plan.slots, _steps(plan, table), samples, bucket.rows)
        views["sampling_ints"][...] = ints
        views["sampling_floats"][...] = floats
        return packed

    def _prompt_logprobs(self, plan: StepPlan, table: RequestTable) -> Iterator[PromptChunk]:
        """Start the log-probabilities of the prompts in this step that want them."""
        firsts = np.cumsum(plan.num_new_tokens) - plan.num_new_tokens
        # Behind the decodes are prompts in the making; there are few of them.
        for row in range(plan.num_decodes, plan.num_rows):
            request, slot, start = plan.requests[row], int(plan.slots[row]), int(plan.starts[row])
            end = min(start + int(plan.num_new_tokens[row]) + 1, len(request.prompt_token_ids))
            if request.params.prompt_logprobs is None or request.output_token_ids or end <= start + 1:
                continue
            targets = table.token_ids[slot, start + 1 : end]
            yield PromptChunk(request, start + 1, end, list(self._prompt_blocks(int(firsts[row]), targets)))

    def _listed_logprobs(self, plan: StepPlan) -> ListedRows | None:
        """Start the log-probabilities of the tokens that requests of this step list; None where none does."""
        rows = np.flatnonzero(plan.samples & self._sampling.lists_tokens[plan.slots]).astype(np.int32)
        if not len(rows):
            return None
        hidden = np.cumsum(plan.num_new_tokens, dtype=np.int32)[rows] - 1
        tokens = self._sampling.listed_tokens[plan.slots[rows]]
        with self.watch.watching("listed tokens"):
            inputs = packed_rows(self._listed_layout, hidden, tokens)
            executable = self._executables.get("listed_logprobs")
            blocks = [executable(self._parameters, self._state.hidden, each) for each in inputs]
        for block in blocks:
            block.copy_to_host_async()
        return ListedRows(rows, blocks)

    def _prompt_blocks(self, first: int, targets: Int32Array) -> Iterator[Any]:
        executable = self._executables.get("prompt_logprobs")
        for begin in range(0, len(targets), PROMPT_LOGPROB_ROWS):
            block = np.zeros(PROMPT_LOGPROB_ROWS, np.int32)
            part = targets[begin : begin + PROMPT_LOGPROB_ROWS]
            block[: len(part)] = part
            yield executable(self._parameters, self._state.hidden, np.int32(first + begin), block)


def _steps(plan: StepPlan, table: RequestTable) -> Int32Array:
    """Output tokens before the one that each row samples, int32 [n]; means nothing for rows that do not."""
    steps: Int32Array = plan.starts + plan.num_new_tokens - table.num_prompt_tokens[plan.slots]
    return steps


def _grown_by_pages(plan: StepPlan, table: RequestTable, page_size: int) -> list[int]:
    """Slots whose rows go on to several new pages at once: a step brings the page of the last token only.

    That takes tokens which were not known when the request was admitted, and were not computed one by one.
    """
    rows = slice(plan.num_decodes, None)
    slots, starts = plan.slots[rows], plan.starts[rows]
    ends = starts + plan.num_new_tokens[rows]
    new_pages = (ends - 1) // page_size - (starts - 1) // page_size
    return [int(slot) for slot in slots[(ends > table.num_prompt_tokens[slots]) & (new_pages > 1)]]


def _with_chosen(
    token_ids: Int32Array, logprobs: Logprobs | None, constrained: ConstrainedRows
) -> tuple[Int32Array, Logprobs | None]:
    """The tokens of a step with those that were chosen later, and log-probabilities if any row wanted them."""
    token_ids = token_ids.copy()
    for rows, sampled in constrained.chosen:
        token_ids[rows] = np.asarray(sampled.token_ids)[: len(rows)]
        if constrained.wants_logprobs:
            logprobs = _placed(logprobs, len(token_ids), rows, jax.device_get(sampled.logprobs))
    return token_ids, logprobs


def _placed(logprobs: Logprobs | None, total: int, rows: Int32Array, found: Logprobs) -> Logprobs:
    """`logprobs`, or zeros, of `total` rows, with `found` for `rows`."""

    def place(new: np.ndarray, old: np.ndarray | None = None) -> np.ndarray:
        values = np.zeros((total, *new.shape[1:]), new.dtype) if old is None else old.copy()
        values[rows] = new[: len(rows)]
        return values

    placed: Logprobs = jax.tree.map(place, *((found,) if logprobs is None else (found, logprobs)))
    return placed
