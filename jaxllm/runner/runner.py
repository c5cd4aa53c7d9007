"""Runs steps on the device: packs a plan into one array, calls the executable of its bucket, reads the tokens back."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from jaxllm.request import Request
from jaxllm.runner.buckets import Bucket, Buckets
from jaxllm.runner.compilations import CompilationWatch
from jaxllm.runner.executables import Executables
from jaxllm.runner.logprobs import Logprobs
from jaxllm.runner.sampler import SampledRows
from jaxllm.runner.sampling_table import SamplingTable
from jaxllm.runner.step import FROM_DEVICE, PROMPT_LOGPROB_ROWS, DeviceState, StepShape
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

    @property
    def wanted(self) -> tuple[jax.Array, Logprobs | None]:
        """What the host wants of it."""
        return self.sampled.token_ids, self.sampled.logprobs if self.wants_logprobs else None


@dataclass(frozen=True)
class StepResult:
    """A finished step, on the host. Rows are those of the plan."""

    token_ids: Int32Array
    """[n]."""
    logprobs: Logprobs | None
    """NumPy arrays [n, ...], when a row asked for them."""
    prompts: list[PromptChunk]
    """With NumPy arrays."""
    bucket: Bucket
    """The shape it ran in."""


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
    ) -> None:
        self.watch = watch
        self._parameters = parameters
        self._state = state
        self._executables = executables
        self._buckets = buckets
        self._shape = shape
        self._layouts = {bucket: shape.layout(bucket) for bucket in buckets.all}
        self._sampling = sampling

    @property
    def num_shapes(self) -> int:
        """Step shapes there are."""
        return len(self._buckets.all)

    def warm_up(self) -> None:
        """Run an empty step, so that everything that happens once has happened."""
        bucket = self._buckets.all[0]
        packed, _ = self._layouts[bucket].host_buffer()
        sampled, self._state = self._executables.step(bucket)(self._parameters, self._state, packed)
        jax.block_until_ready(sampled)

    def must_wait(self, table: RequestTable) -> bool:
        """Whether the next step needs tokens on the host that are still on the device.

        What a row may sample can depend on its text so far, as with bad words of several tokens. Whatever else comes
        to depend on it belongs into `SamplingTable.must_wait`. Such a step starts when the one before is collected.
        """
        return self._sampling.must_wait(table)

    def dispatch(self, plan: StepPlan, table: RequestTable) -> Dispatched:
        """Start a step, right after it was scheduled. Returns at once; the device works while the host goes on."""
        bucket = self._buckets.fit(plan.num_tokens)
        # Outside the watch: with `enforce_eager` a shape is compiled when it is first met, on purpose.
        executable = self._executables.step(bucket)
        with self.watch.watching(bucket):
            if plan.copies is not None:
                self._copy_pages(plan.copies)
            self._place_pages(plan, table)
            self._update_sampling(plan, table)
            packed = self._pack(plan, table, bucket)
            sampled, self._state = executable(self._parameters, self._state, packed)
            prompts = list(self._prompt_logprobs(plan, table))
        wants_logprobs = bool(self._sampling.wants_logprobs(plan.slots[plan.samples]).any())
        step = Dispatched(plan, bucket, sampled, wants_logprobs, prompts)
        # The way to the host begins when the step ends, not when somebody asks.
        for leaf in jax.tree.leaves(step.wanted):
            leaf.copy_to_host_async()
        return step

    def collect(self, step: Dispatched) -> StepResult:
        """Wait for a step and bring its tokens to the host, and log-probabilities only where asked for."""
        rows = step.plan.num_rows
        token_ids, logprobs = jax.tree.map(lambda leaf: leaf[:rows], jax.device_get(step.wanted))
        prompts = [
            PromptChunk(chunk.request, chunk.begin, chunk.end, jax.device_get(chunk.blocks)) for chunk in step.prompts
        ]
        return StepResult(token_ids, logprobs, prompts, step.bucket)

    def close(self) -> None:
        """Free the device memory; the runner cannot be used any more."""
        self.watch.close()
        for leaf in jax.tree.leaves((self._parameters, self._state)):
            leaf.delete()

    def _place_pages(self, plan: StepPlan, table: RequestTable) -> None:
        """Write the pages of newly admitted requests, and of lanes that moved, into the device's table."""
        size, width = self._shape.rows_at_once, self._shape.table_width
        page_table = self._state.page_table
        changed = plan.moved
        if plan.admitted:
            changed = [request.slot for request in plan.admitted] + changed
        for first in range(0, len(changed), size):
            part = changed[first : first + size]
            slots, pages = np.full(size, -1, np.int32), np.zeros((size, width), np.int32)
            slots[: len(part)] = part
            pages[: len(part)] = table.block_table[part]
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
                sampling = self._executables.set_row(sampling, np.int32(request.slot), *dense)
        for update in self._sampling.updates(table, plan.slots[plan.samples], _steps(plan, table)[plan.samples]):
            sampling = self._executables.set_bias(sampling, *update)
        self._state = replace(self._state, sampling=sampling)

    def _pack(self, plan: StepPlan, table: RequestTable, bucket: Bucket) -> Int32Array:
        """The packed input of a plan."""
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
        ints, floats = self._sampling.pack(plan.slots, _steps(plan, table), plan.samples, bucket.rows)
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

    def _prompt_blocks(self, first: int, targets: Int32Array) -> Iterator[Any]:
        executable = self._executables.prompt_logprobs
        for begin in range(0, len(targets), PROMPT_LOGPROB_ROWS):
            block = np.zeros(PROMPT_LOGPROB_ROWS, np.int32)
            part = targets[begin : begin + PROMPT_LOGPROB_ROWS]
            block[: len(part)] = part
            yield executable(self._parameters, self._state.hidden, np.int32(first + begin), block)


def _steps(plan: StepPlan, table: RequestTable) -> Int32Array:
    """Output tokens before the one that each row samples, int32 [n]; means nothing for rows that do not."""
    steps: Int32Array = plan.starts + plan.num_new_tokens - table.num_prompt_tokens[plan.slots]
    return steps
