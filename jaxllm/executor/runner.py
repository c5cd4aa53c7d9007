"""Runs steps on the device: packs a plan into one array, calls the executable of its bucket, reads the tokens back."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import numpy.typing as npt

from jaxllm.executor.compile.background import BackgroundCompilation
from jaxllm.executor.compile.buckets import Bucket, Buckets
from jaxllm.executor.compile.compilations import CompilationWatch
from jaxllm.executor.compile.first_run import first_run
from jaxllm.executor.constrained_calls import ConstrainedCalls, with_chosen
from jaxllm.executor.device_calls import DeviceCalls
from jaxllm.executor.plain_steps import PlainSteps
from jaxllm.executor.program_table import (
    COPY_PAGES,
    COPY_STATES,
    COUNT_TOKENS,
    LISTED_LOGPROBS,
    PROMPT_LOGPROBS,
    SET_BIAS,
    SET_PAGES,
    SET_ROW,
)
from jaxllm.executor.sampler.constrained import ConstrainedRows
from jaxllm.executor.sampler.listed import ListedRows, listed_layout, packed_rows
from jaxllm.executor.sampler.logprobs import Logprobs
from jaxllm.executor.sampler.prompt_logprobs import PROMPT_LOGPROB_ROWS
from jaxllm.executor.sampler.sampler import SampledRows
from jaxllm.executor.sampler.table import UPDATE_SIZE, SamplingTable
from jaxllm.executor.step_inputs import StepShape
from jaxllm.executor.step_packer import StepPacker, active_shard_plans, output_lengths
from jaxllm.requests.request import Request
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.table import RequestTable
from jaxllm.speculation.acceptance import accept_drafts

if TYPE_CHECKING:
    from jaxllm.executor.sampler.compiled_processors import CompiledProcessors

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
    is_plain: bool = False
    """Whether the drafter had no part in it, see `PlainSteps`."""

    @property
    def wanted(self) -> tuple[jax.Array, Logprobs | None, jax.Array | None]:
        """What the host wants of it: tokens, their log-probabilities, and drafts of what follows."""
        sampled = self.sampled
        drafts = sampled.drafts if self.plan.draft_steps else None
        return sampled.token_ids, sampled.logprobs if self.wants_logprobs else None, drafts


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
    """Tokens of each row, [n]: the sampled ones and those that follow without a choice. None: one each."""
    logprob_rows: Int32Array | None = None
    """Where in `logprobs` the first token of each row is, [n]; further sampled ones follow it. None: one each."""
    drafts: Int32Array | None = None
    """Guesses of the device at what follows each row, [n, draft steps]; mean nothing for rows that do not sample."""


class Runner:
    """Turns plans into calls of programs. `calls` are its own from then on, and have a state."""

    def __init__(
        self,
        *,
        calls: DeviceCalls,
        buckets: Buckets,
        shape: StepShape,
        sampling: SamplingTable,
        watch: CompilationWatch,
        background: BackgroundCompilation | None = None,
        processors: "CompiledProcessors | None" = None,
    ) -> None:
        """`processors` are there where the engine has any, be they compiled or not."""
        self.watch = watch
        self._background = background
        self.calls = calls
        self._buckets = buckets
        self._shape = shape
        self._num_slots = calls.state.last_tokens.shape[0]
        self._packer = StepPacker(shape, buckets, sampling, self._num_slots)
        self._constrained = ConstrainedCalls(calls, self._packer, sampling, watch, shape.shards)
        self._processed = None
        if processors is not None:
            from jaxllm.executor.processed_calls import ProcessedCalls

            self._processed = ProcessedCalls(calls, self._packer, watch, shape.shards, processors)
        self._embeddings = None
        if shape.takes_embeddings:
            from jaxllm.executor.embedding_calls import EmbeddingCalls

            self._embeddings = EmbeddingCalls(calls, self._packer, self._num_slots, buckets.largest.tokens)
        has_drafter = shape.drafter is not None
        self._plain = PlainSteps(calls, shape, buckets, sampling, self._num_slots) if has_drafter else None
        self._listed_layout = listed_layout(self._num_slots)
        # Only outputs that follow a grammar get tokens by other ways than one step each.
        self._has_chosen = False
        self._sampling = sampling

    @property
    def num_shapes(self) -> int:
        """Step shapes there are."""
        return len(self._buckets.all)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The step shapes, the smallest first."""
        return self._buckets.all

    @property
    def parameters(self) -> tuple[jax.Array, ...]:
        """The model's parameters."""
        return self.calls.parameters

    def warm_up(self, buckets: Iterable[Bucket]) -> None:
        """Run an empty step of each bucket, so that everything that happens once has happened. Raises like `first_run`.

        They must be made, or be those that are made when they are met.
        """
        for bucket in buckets:
            what = f"the first step of {bucket}"
            first_run(self.calls.executables, what, partial(self._run_empty, bucket), self.calls.renew_state)
            if self._plain is not None and self._plain.is_made(bucket):
                run = partial(self._plain.run_empty, bucket)
                first_run(self.calls.executables, f"{what} without drafts", run, self.calls.renew_state)

    def _run_empty(self, bucket: Bucket) -> None:
        packed = self._packer.empty(bucket)
        sampled = self.calls.step(bucket, packed)
        jax.block_until_ready((sampled, self.calls.state))

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
        bucket = self._bucket_for(plan.most_tokens)
        is_complete, plain = self._background is None, self._plain
        if plain is not None and not plain.takes(plan, bucket, is_complete=is_complete):
            plain = None
        # Outside the watch: with `enforce_eager` a shape is compiled when it is first met, on purpose.
        self.calls.prepare(bucket.name if plain is None else bucket.plain_name)
        constrained = plan.constrained
        samples = plan.samples if constrained is None else plan.samples & ~constrained
        with self.watch.watching(bucket):
            copies = self._packer.copies(plan)
            if copies is not None and self.calls.state.kv_cache.pages:
                self.calls.call(COPY_PAGES, *copies)
            if plan.states_before:
                self._copy_states(plan.states_before)
            self._place_pages(plan, table)
            self._update_sampling(plan, table)
            if self._embeddings is not None:
                self._embeddings.send(plan, table)
            if plain is None:
                sampled = self.calls.step(bucket, self._packer.pack(plan, table, bucket, samples))
            else:
                sampled = plain.call(bucket, plain.packer.pack(plan, table, bucket, samples))
            if plan.states_behind:
                self._copy_states(plan.states_behind)
            prompts = list(self._prompt_logprobs(plan, table))
        wants_logprobs = bool(self._sampling.wants_logprobs(plan.slots[samples]).any())
        rest = None if constrained is None else self._constrained.rows(plan, table, constrained)
        listed = None
        if wants_logprobs or (rest is not None and rest.wants_logprobs):
            listed = self._listed_logprobs(plan)
        step = Dispatched(plan, bucket, sampled, wants_logprobs, prompts, rest, listed, is_plain=plain is not None)
        # The way to the host begins when the step ends, not when somebody asks.
        for leaf in jax.tree.leaves(step.wanted):
            leaf.copy_to_host_async()
        return step

    def _bucket_for(self, num_tokens: int) -> Bucket:
        """The shape of the next step: the smallest that fits, as far as it is compiled."""
        if self._background is not None:
            if not self._background.complete:
                return self._buckets.fit_among(num_tokens, self.calls.executables.has_step)
            self._background = None
        return self._buckets.fit(num_tokens)

    def choose(self, constrained: ConstrainedRows, which: Int32Array, masks: Int32Array) -> None:
        """Choose the tokens of rows that the last step left out: int32 [n] of `constrained`, and their masks [n, W]."""
        self._has_chosen = True
        self._constrained.choose(constrained, which, masks)

    def row_logits(self, constrained: ConstrainedRows, which: Int32Array) -> npt.NDArray[np.float32]:
        """See `ProcessedCalls.logits`."""
        assert self._processed is not None
        return self._processed.logits(constrained, which)

    def choose_processed(
        self,
        constrained: ConstrainedRows,
        which: Int32Array,
        masks: Int32Array,
        uses: Int32Array,
        numbers: Int32Array,
        logits: npt.NDArray[np.float32] | None = None,
    ) -> None:
        """See `ProcessedCalls.choose`."""
        assert self._processed is not None
        self._has_chosen = True
        self._processed.choose(constrained, which, masks, uses, numbers, logits)

    def collect(self, step: Dispatched) -> StepResult:
        """Wait for a step and bring its tokens to the host, and log-probabilities only where asked for."""
        packer = self._plain.packer if self._plain is not None and step.is_plain else self._packer
        rows = packer.result_rows(step.plan, step.bucket)
        token_ids, logprobs, drafts = self.calls.fetch(step.wanted)
        token_ids, logprobs = jax.tree.map(lambda leaf: leaf[rows], (token_ids, logprobs))
        if drafts is not None:
            drafts = drafts[self._packer.own_rows(step.plan, step.bucket), : step.plan.draft_steps]
        counts = firsts = None
        num_drafts, draft_ids = step.plan.num_drafts, step.plan.draft_ids
        if num_drafts is not None:
            firsts = np.cumsum(1 + num_drafts, dtype=np.int32) - (1 + num_drafts)
        if step.constrained is not None:
            token_ids, logprobs = with_chosen(token_ids, logprobs, step.constrained, firsts)
        if num_drafts is not None and draft_ids is not None:
            token_ids, counts = accept_drafts(token_ids, num_drafts, draft_ids)
        prompts = [
            PromptChunk(chunk.request, chunk.begin, chunk.end, jax.device_get(chunk.blocks)) for chunk in step.prompts
        ]
        listed = None if step.listed is None else step.listed.collect()
        return StepResult(token_ids, logprobs, prompts, step.bucket, listed, counts, firsts, drafts)

    @property
    def any_bias_changes(self) -> bool:
        """Whether the bias of any running request depends on its output."""
        return self._sampling.any_changes

    def num_unchanged(self, slot: int, num_output_tokens: int) -> int:
        """See `SamplingTable.num_unchanged`."""
        return self._sampling.num_unchanged(slot, num_output_tokens)

    def count_tokens(self, slots: Int32Array, token_ids: Int32Array) -> None:
        """Count tokens of slots' outputs for penalties, both int32 [n], where steps with drafts did not."""
        with self.watch.watching("accepted tokens"):
            for first in range(0, len(slots), UPDATE_SIZE):
                own, tokens = np.full(UPDATE_SIZE, -1, np.int32), np.zeros(UPDATE_SIZE, np.int32)
                some = slice(first, first + UPDATE_SIZE)
                own[: len(slots[some])], tokens[: len(slots[some])] = slots[some], token_ids[some]
                self.calls.call(COUNT_TOKENS, own, tokens)

    def set_adapter(self, slot: int, stages: Sequence[Sequence[np.ndarray]]) -> None:
        """Bring an adapter to a slot, for the steps dispatched from now on; see `DeviceCalls.set_adapter`."""
        with self.watch.watching("an adapter"):
            self.calls.set_adapter(slot, stages)

    def close(self) -> None:
        """Free the device memory; the runner cannot be used any more."""
        if self._background is not None:
            self._background.stop()
        self.watch.close()
        self.calls.close()

    def _place_pages(self, plan: StepPlan, table: RequestTable) -> None:
        """Write the pages that are new by several, or of slots that moved, into the device's table."""
        size, width = self._shape.rows_at_once, self._shape.num_tables * self._shape.table_width
        changed = plan.moved
        if plan.admitted:
            changed = [request.slot for request in plan.admitted] + changed
        if (self._has_chosen or self._shape.max_drafts or table.groups.gives_back) and plan.num_decodes < plan.num_rows:
            for part in active_shard_plans(plan):
                changed = changed + _grown_by_pages(part, table, self._shape.page_size)
        for first in range(0, len(changed), size):
            some = changed[first : first + size]
            slots, pages = np.full(size, -1, np.int32), np.zeros((size, width), np.int32)
            slots[: len(some)] = some
            pages[: len(some)] = table.block_table[some]
            self.calls.call(SET_PAGES, slots, pages)

    def _copy_states(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy states of recurrent layers from slots to slots, in this order, after all steps so far."""
        slots = np.zeros((2, self._num_slots), np.int32)
        slots[:, : len(copies)] = np.array(copies, np.int32).T
        self.calls.call(COPY_STATES, slots, np.int32(len(copies)))

    def _update_sampling(self, plan: StepPlan, table: RequestTable) -> None:
        """Take over the parameters of newly admitted requests, and what the outputs so far change about others."""
        for request in plan.admitted:
            dense = self._sampling.set(request)
            if dense is not None:
                self.calls.call(SET_ROW, np.int32(request.slot), *dense)
        for update in self._sampling.updates(
            table, plan.slots[plan.samples], output_lengths(plan, table)[plan.samples]
        ):
            self.calls.call(SET_BIAS, *update)

    def _prompt_logprobs(self, plan: StepPlan, table: RequestTable) -> Iterator[PromptChunk]:
        """Start the log-probabilities of the prompts in this step that want them."""
        # After the decodes are prompts in the making; there are few of them.
        for row in plan.prompt_rows:
            request, slot, start = plan.requests[row], int(plan.slots[row]), int(plan.starts[row])
            end = min(start + int(plan.num_new_tokens[row]) + 1, len(request.prompt_token_ids))
            if request.params.prompt_logprobs is None or request.output_token_ids or end <= start + 1:
                continue
            targets = table.token_ids[slot, start + 1 : end]
            first = int(self._packer.last_hidden(plan)[row] - plan.num_new_tokens[row]) + 1
            yield PromptChunk(request, start + 1, end, list(self._prompt_blocks(first, targets)))

    def _listed_logprobs(self, plan: StepPlan) -> ListedRows | None:
        """Start the log-probabilities of the tokens that requests of this step list; None where none does."""
        rows = np.flatnonzero(plan.samples & self._sampling.lists_tokens[plan.slots]).astype(np.int32)
        if not len(rows):
            return None
        hidden = self._packer.last_hidden(plan)[rows]
        tokens = self._sampling.listed_tokens[plan.slots[rows]]
        with self.watch.watching("listed tokens"):
            inputs = packed_rows(self._listed_layout, hidden, tokens)
            blocks = [self.calls.call(LISTED_LOGPROBS, each) for each in inputs]
        for block in blocks:
            block.copy_to_host_async()
        return ListedRows(rows, blocks)

    def _prompt_blocks(self, first: int, targets: Int32Array) -> Iterator[Any]:
        for begin in range(0, len(targets), PROMPT_LOGPROB_ROWS):
            block = np.zeros(PROMPT_LOGPROB_ROWS, np.int32)
            part = targets[begin : begin + PROMPT_LOGPROB_ROWS]
            block[: len(part)] = part
            yield self.calls.call(PROMPT_LOGPROBS, np.int32(first + begin), block)


def _grown_by_pages(plan: StepPlan, table: RequestTable, page_size: int) -> list[int]:
    """Slots whose rows go on to several new pages at once: a step brings the page of the last token only.

    That takes tokens which were not known when the request was admitted, and were not computed one by one. Or a page
    table that gets its pages step by step.
    """
    rows = slice(plan.num_decodes, None)
    slots, starts = plan.slots[rows], plan.starts[rows]
    ends = starts + plan.num_new_tokens[rows]
    new_pages = (ends - 1) // page_size - (starts - 1) // page_size
    grown = new_pages > 1
    if not table.groups.gives_back:
        grown &= ends > table.num_prompt_tokens[slots]
    return [int(slot) for slot in slots[grown]]
