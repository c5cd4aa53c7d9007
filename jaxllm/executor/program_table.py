"""The programs of an engine: one record each, which everything that compiles, calls or repeats programs follows.

A record says how the program is made, which device state it reads and replaces, and which stages have it. To add a
program, write its body and add a record to `PROGRAMS`; then `calls.call(RECORD, *inputs)` runs it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, Final, Protocol

import jax

from jaxllm.errors import EngineError
from jaxllm.executor.adapter_programs import (
    empty_adapters_body,
    has_adapters,
    has_vectors,
    row_squares_body,
    scale_adapter_body,
    set_adapter_body,
)
from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.compile.data_shards import map_over_data_shards
from jaxllm.executor.compile.program import Program, program_from_leaves
from jaxllm.executor.compile.program_context import ProgramBody, ProgramContext
from jaxllm.executor.media_programs import encode_body, encode_sizes, hear_body, hear_rows_body
from jaxllm.executor.sampler.constrained import sample_constrained_body
from jaxllm.executor.sampler.listed import listed_logprobs_body
from jaxllm.executor.sampler.logprobs import Logprobs
from jaxllm.executor.sampler.processed import row_logits_body, sample_from_host_body, sample_processed_body
from jaxllm.executor.sampler.prompt_logprobs import prompt_logprobs_body
from jaxllm.executor.sampler.sampler import SampledRows
from jaxllm.executor.state_programs import (
    copy_pages_body,
    copy_states_body,
    count_tokens_body,
    empty_state_body,
    set_bias_body,
    set_embeddings_body,
    set_pages_body,
    set_row_body,
)
from jaxllm.executor.step_program import plain_step_body, stage_step_body, step_body
from jaxllm.executor.transfer_programs import (
    gather_pages_body,
    gather_state_body,
    moves_pages,
    moves_states,
    page_sizes,
    scatter_pages_body,
    scatter_state_body,
)

PARAMETERS, ADAPTERS, STATE = "parameters", "adapters", "state"
PLAIN_STATE = "plain_state"
HIDDEN, SAMPLING, LAST_TOKENS = "state.hidden", "state.sampling", "state.last_tokens"
MEDIA = "state.media_pool"
PAGE_TABLE, PAGES, RECURRENT = "state.page_table", "state.kv_cache.pages", "state.kv_cache.states"

ARRAY: Any = 0
"""A result that is one array."""
LOGPROBS = Logprobs(ARRAY, ARRAY, ARRAY, ARRAY)
SAMPLED = SampledRows(ARRAY, LOGPROBS)


class Holder(Protocol):
    """Has what the paths of a record lead to: arrays in `DeviceCalls`, their shapes in `ProgramContext`."""

    @property
    def parameters(self) -> Any:
        """The model's parameters."""
        ...

    @property
    def adapters(self) -> Any:
        """The arrays of the adapter slots."""
        ...

    @property
    def state(self) -> Any:
        """A `DeviceState`, or a `StageState`."""
        ...

    @property
    def plain_state(self) -> Any:
        """A `DeviceState` without what a drafter keeps."""
        ...


@dataclass(frozen=True)
class ProgramRecord:
    """The declaration of a program.

    Its arguments are what it reads, what it updates, and the inputs of its body. Paths lead from a `Holder` to device
    state, such as "state.kv_cache.pages".
    """

    name: str
    body: Callable[..., ProgramBody]
    """Makes it of a `ProgramContext`; that of a step takes a `Bucket` too."""
    reads: tuple[str, ...] = ()
    """Paths of what it only reads, parameters first."""
    updates: tuple[str, ...] = ()
    """Paths of state that it takes, by donation, and replaces."""
    writes: tuple[str, ...] = ()
    """Paths of state that it makes without reading it."""
    returns: Any = None
    """Structure of its result, with leaves that mean nothing; None: it has none."""
    is_per_shard: bool = True
    """Whether each data shard runs it on its own part of all arrays; if not, the compiler splits it over all devices,
    and the result is whole on each."""
    is_in_every_stage: bool = False
    """Whether every stage of layers has it, or the last one alone. An engine without stages is a last one."""
    is_in_first_stage: bool = False
    """Whether the first stage has it, and no other one."""
    is_present: Callable[[ProgramContext[Any]], bool] = lambda context: True
    """Whether an engine has it."""
    sizes: Callable[[ProgramContext[Any]], tuple[int, ...]] | None = None
    """The sizes of its inputs, if there is a program for each, called `sized_name`. Steps have buckets instead."""

    def is_in(self, context: ProgramContext[Any]) -> bool:
        """Whether the engine, or the stage, has it."""
        is_here = context.is_first if self.is_in_first_stage else self.is_in_every_stage or context.is_last
        return is_here and self.is_present(context)

    def sized_name(self, size: int) -> str:
        """The name of the program of a size."""
        return f"{self.name}_{size}"

    def programs(self, context: ProgramContext[Any]) -> dict[str, Program]:
        """Its programs, by name: one, or one for each size."""
        if self.sizes is None:
            return {self.name: self.make(context)}
        return {self.sized_name(size): self.make(context, size) for size in self.sizes(context)}

    def make(self, context: ProgramContext[Any], size: Bucket | int | None = None) -> Program:
        """The program; that of a step for a bucket, and others of a size if they have several."""
        body = self.body(context) if size is None else self.body(context, size)
        shapes = [*self.arguments(context), *body.inputs]
        replaced = [attrgetter(path)(context) for path in self._replaced]
        outputs = [(each, jax.tree.map(lambda leaf: leaf.sharding, each)) for each in replaced]
        if self.returns is not None:
            place = context.by_shard if self.is_per_shard else context.whole
            outputs.insert(0, (self.returns, body.result_sharding or place))
        result, places = outputs[0] if len(outputs) == 1 else zip(*outputs, strict=True)
        first = len(self.reads)
        options: dict[str, Any] = {
            "result": result,
            "donated": tuple(range(first, first + len(self.updates))),
            "out_shardings": places,
            "mesh": context.mesh,
        }
        if PARAMETERS in self.reads:
            name = self.name
            if size is not None:
                name = f"{name}_{size.tokens}_tokens" if isinstance(size, Bucket) else self.sized_name(size)
            program = program_from_leaves(name, body.function, *shapes, precision=context.precision, **options)
        else:
            program = Program(body.function, tuple(shapes), **options)
        return map_over_data_shards(program) if self.is_per_shard else program

    def arguments(self, holder: Holder) -> tuple[Any, ...]:
        """The arrays it reads and updates, taken from their holder."""
        return self._arguments(holder)

    def take_results(self, holder: Any, outputs: Any) -> Any:
        """Its result, None where it has none. What it has replaced goes to the `Holder`, which changes."""
        if self._is_result_and_state:
            result, holder.state = outputs
            return result
        each = iter(outputs if self._num_outputs > 1 else (outputs,))
        result = None if self.returns is None else next(each)
        for path in self._replaced:
            root, *names = path.split(".")
            setattr(holder, root, _with(getattr(holder, root), names, next(each)) if names else next(each))
        return result

    @cached_property
    def _is_result_and_state(self) -> bool:
        """Whether its outputs are its result and all of the state, as those of a step are."""
        return self.returns is not None and self._replaced == (STATE,)

    @cached_property
    def _replaced(self) -> tuple[str, ...]:
        return (*self.updates, *self.writes)

    @cached_property
    def _num_outputs(self) -> int:
        return len(self._replaced) + (self.returns is not None)

    @cached_property
    def _arguments(self) -> Callable[[Holder], tuple[Any, ...]]:
        paths = (*self.reads, *self.updates)
        if len(paths) > 1:
            return attrgetter(*paths)
        return lambda holder: tuple(attrgetter(path)(holder) for path in paths)


def _with(state: Any, names: list[str], value: Any) -> Any:
    """The state, or a part of it, with `value` where the names lead to."""
    if not names:
        return value
    first, *others = names
    return replace(state, **{first: _with(getattr(state, first), others, value)})


STEP: Final = ProgramRecord(
    "step", step_body, reads=(PARAMETERS, ADAPTERS), updates=(STATE,), returns=SAMPLED, is_in_every_stage=True
)
STAGE_STEP: Final = replace(STEP, body=stage_step_body, returns=ARRAY)
"""The step of a stage that is not the last. The two have a program for each bucket, called `Bucket.name`, all others
have one."""

DRAFTING_STEP: Final = replace(STEP, returns=replace(SAMPLED, drafts=ARRAY))
"""The step of a model with a drafter."""

PLAIN_STEP: Final = replace(
    STEP,
    name="plain_step",
    body=plain_step_body,
    updates=(PLAIN_STATE,),
    is_in_every_stage=False,
    is_present=lambda context: bool(context.plain_steps),
    sizes=lambda context: tuple(bucket.tokens for bucket in context.plain_steps),
)
"""The step of such a model while its drafter rests: it does not even take what that keeps."""

EMPTY_STATE: Final = ProgramRecord(
    "empty_state", empty_state_body, writes=(STATE,), is_per_shard=False, is_in_every_stage=True
)
PROMPT_LOGPROBS: Final = ProgramRecord(
    "prompt_logprobs", prompt_logprobs_body, reads=(PARAMETERS, HIDDEN), returns=LOGPROBS, is_per_shard=False
)
LISTED_LOGPROBS: Final = ProgramRecord(
    "listed_logprobs", listed_logprobs_body, reads=(PARAMETERS, HIDDEN), returns=ARRAY, is_per_shard=False
)
SAMPLE_CONSTRAINED: Final = ProgramRecord(
    "sample_constrained",
    sample_constrained_body,
    reads=(PARAMETERS, HIDDEN),
    updates=(SAMPLING, LAST_TOKENS),
    returns=SAMPLED,
)
SET_ROW: Final = ProgramRecord("set_row", set_row_body, updates=(SAMPLING,))
SET_BIAS: Final = ProgramRecord("set_bias", set_bias_body, updates=(SAMPLING,))
COUNT_TOKENS: Final = ProgramRecord(
    "count_tokens",
    count_tokens_body,
    updates=(SAMPLING,),
    is_present=lambda context: context.shape.max_drafts > 0,
)
SET_PAGES: Final = ProgramRecord("set_pages", set_pages_body, updates=(PAGE_TABLE,), is_in_every_stage=True)
COPY_PAGES: Final = ProgramRecord("copy_pages", copy_pages_body, updates=(PAGES,), is_in_every_stage=True)
COPY_STATES: Final = ProgramRecord(
    "copy_states",
    copy_states_body,
    updates=(RECURRENT,),
    is_present=lambda context: bool(context.state.kv_cache.states),
)
GATHER_PAGES: Final = ProgramRecord(
    "gather_pages",
    gather_pages_body,
    reads=(PAGES,),
    returns=ARRAY,
    is_in_every_stage=True,
    is_present=moves_pages,
    sizes=page_sizes,
)
SCATTER_PAGES: Final = ProgramRecord(
    "scatter_pages",
    scatter_pages_body,
    updates=(PAGES,),
    is_in_every_stage=True,
    is_present=moves_pages,
    sizes=page_sizes,
)
GATHER_STATE: Final = ProgramRecord(
    "gather_state", gather_state_body, reads=(RECURRENT,), returns=ARRAY, is_present=moves_states
)
SCATTER_STATE: Final = ProgramRecord("scatter_state", scatter_state_body, updates=(RECURRENT,), is_present=moves_states)
EMPTY_ADAPTERS: Final = ProgramRecord(
    "empty_adapters",
    empty_adapters_body,
    writes=(ADAPTERS,),
    is_per_shard=False,
    is_in_every_stage=True,
    is_present=has_adapters,
)
SET_ADAPTER: Final = ProgramRecord(
    "set_adapter", set_adapter_body, updates=(ADAPTERS,), is_in_every_stage=True, is_present=has_adapters
)
ROW_SQUARES: Final = ProgramRecord(
    "row_squares",
    row_squares_body,
    reads=(PARAMETERS, ADAPTERS),
    writes=("row_squares",),
    is_in_every_stage=True,
    is_present=has_vectors,
)
SCALE_ADAPTER: Final = ProgramRecord(
    "scale_adapter",
    scale_adapter_body,
    reads=(PARAMETERS, "row_squares"),
    updates=(ADAPTERS,),
    is_in_every_stage=True,
    is_present=has_vectors,
)
SET_EMBEDDINGS: Final = ProgramRecord(
    "set_embeddings",
    set_embeddings_body,
    updates=(HIDDEN,),
    is_present=lambda context: context.shape.takes_embeddings,
)
ENCODE: Final = ProgramRecord(
    "encode",
    encode_body,
    reads=(PARAMETERS,),
    updates=(MEDIA,),
    is_in_first_stage=True,
    is_present=lambda context: context.tower is not None,
    sizes=encode_sizes,
)
HEAR: Final = ProgramRecord(
    "hear",
    hear_body,
    reads=(PARAMETERS,),
    updates=(PAGES,),
    is_present=lambda context: context.sound is not None and context.sound.token_id is None,
)
HEAR_ROWS: Final = ProgramRecord(
    "hear_rows",
    hear_rows_body,
    reads=(PARAMETERS,),
    updates=(MEDIA,),
    is_in_first_stage=True,
    is_present=lambda context: context.sound is not None and context.sound.token_id is not None,
)
SAMPLE_PROCESSED: Final = ProgramRecord(
    "sample_processed",
    sample_processed_body,
    reads=(PARAMETERS, HIDDEN),
    updates=(SAMPLING, LAST_TOKENS),
    returns=replace(SAMPLED, is_empty=ARRAY),
    is_present=lambda context: context.processors is not None and bool(context.processors.processors),
)
ROW_LOGITS: Final = ProgramRecord(
    "row_logits",
    row_logits_body,
    reads=(PARAMETERS, HIDDEN, SAMPLING),
    returns=ARRAY,
    is_present=lambda context: context.has_host_processors,
)
SAMPLE_FROM_HOST: Final = replace(
    SAMPLE_PROCESSED, name="sample_from_host", body=sample_from_host_body, is_present=ROW_LOGITS.is_present
)

PROGRAMS: Final = (
    EMPTY_STATE,
    PLAIN_STEP,
    PROMPT_LOGPROBS,
    LISTED_LOGPROBS,
    SAMPLE_CONSTRAINED,
    SET_ROW,
    SET_BIAS,
    COUNT_TOKENS,
    SET_PAGES,
    COPY_PAGES,
    COPY_STATES,
    GATHER_PAGES,
    SCATTER_PAGES,
    GATHER_STATE,
    SCATTER_STATE,
    EMPTY_ADAPTERS,
    SET_ADAPTER,
    ROW_SQUARES,
    SCALE_ADAPTER,
    SET_EMBEDDINGS,
    ENCODE,
    HEAR,
    HEAR_ROWS,
    SAMPLE_PROCESSED,
    ROW_LOGITS,
    SAMPLE_FROM_HOST,
)
"""All but the steps of all buckets, in the order in which they are compiled after them."""

_BY_NAME: Final = {record.name: record for record in PROGRAMS}
_SIZED: Final = (STEP, *(record for record in PROGRAMS if record.sizes is not None))


def find_record(name: str) -> ProgramRecord:
    """The record of a program that another process, or a stage, calls by its name.

    Raises `EngineError` for an unknown one.
    """
    for record in _SIZED:
        if name.startswith(f"{record.name}_"):
            return record
    if name not in _BY_NAME:
        raise EngineError(f"program {name!r} is unknown (known: steps and {', '.join(_BY_NAME)})")
    return _BY_NAME[name]
