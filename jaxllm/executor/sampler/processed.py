"""Rows whose logits are changed by processors before their tokens are chosen, after the step.

A processor gets logits with bias and penalties, of the tokens that a grammar allows; temperature and filters come after
it. Those that run on the host get them from one program, and give them to another; those that are compiled are part of
the latter.

Axis letters: M rows of one call, W words of a mask, V vocabulary, K numbers of a request.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxllm.executor.compile.program_context import ProgramBody, ProgramContext
from jaxllm.executor.device_state import DeviceState
from jaxllm.executor.packed_layout import PackedLayout
from jaxllm.executor.sampler.blocks import put_last_tokens, sample_in_blocks
from jaxllm.executor.sampler.constrained import CONSTRAINED_ROWS, constrained_fields
from jaxllm.executor.sampler.penalties import process
from jaxllm.executor.sampler.rows import SamplingRows, SamplingState
from jaxllm.executor.sampler.sampler import SampledRows, allowed_tokens
from jaxllm.executor.sampler.vocabulary import SAME, SPLIT, over_vocabulary
from jaxllm.executor.shards import max_over_shards
from jaxllm.executor.step_inputs import StepShape
from jaxllm.models.causal_lm import CausalLM
from jaxllm.pallas_kernels.sampling import WHOLE, Vocabulary

if TYPE_CHECKING:
    from jaxllm.executor.sampler.compiled_processors import CompiledProcessors

HOST_ROWS = 16
"""Most rows of one call for processors on the host: their logits travel both ways, and those of padding too."""

_LARGEST = 1e30
"""What larger logits, and infinity, count as: nothing alongside it has a chance, and dividing by a temperature is
safe.
"""


def processed_layout(state: Any, shards: int, num_numbers: int, *, from_host: bool) -> PackedLayout:
    """The packed input of a shard, for a `SamplingState` of all: [S, V] says how many rows and words."""
    fields = constrained_fields(state, shards, HOST_ROWS if from_host else CONSTRAINED_ROWS)
    rows = fields["hidden_rows"][0][0]
    return PackedLayout({**fields, "uses": ((rows,), np.int32), "numbers": ((rows, num_numbers), np.int32)})


def row_logits_body(context: ProgramContext[DeviceState]) -> ProgramBody:
    """See `make_row_logits`."""
    layout = _layout_of(context, from_host=True)
    return ProgramBody(make_row_logits(context.graph, layout), (context.of_shards(layout.size),))


def sample_processed_body(context: ProgramContext[DeviceState]) -> ProgramBody:
    """See `make_sample_processed`."""
    layout = _layout_of(context, from_host=False)
    return ProgramBody(_sample_processed(context, layout, from_host=False), (context.of_shards(layout.size),))


def sample_from_host_body(context: ProgramContext[DeviceState]) -> ProgramBody:
    """As above, with logits that processors on the host have changed."""
    layout, shards = _layout_of(context, from_host=True), context.shape.shards
    rows = len(layout.host_buffer()[1]["hidden_rows"])
    size = (shards * rows, context.state.sampling.bias.shape[1])
    logits = context.host(size, np.float32, "shards" if shards > 1 else None, "vocab")
    return ProgramBody(_sample_processed(context, layout, from_host=True), (context.of_shards(layout.size), logits))


def _layout_of(context: ProgramContext[DeviceState], *, from_host: bool) -> PackedLayout:
    assert context.processors is not None
    numbers = context.processors.num_numbers
    return processed_layout(context.state.sampling, context.shape.shards, numbers, from_host=from_host)


def _sample_processed(
    context: ProgramContext[DeviceState], layout: PackedLayout, *, from_host: bool
) -> Callable[..., Any]:
    assert context.processors is not None
    return make_sample_processed(context.graph, context.shape, layout, context.processors, from_host=from_host)


def make_row_logits(graph: nnx.GraphDef[CausalLM], layout: PackedLayout) -> Callable[..., Any]:
    """The function `(parameters, hidden, sampling, packed) -> float32 [M, V]`: logits with bias and penalties."""

    def row_logits(parameters: Any, hidden: jax.Array, sampling: SamplingState, packed: jax.Array) -> jax.Array:
        model = nnx.merge(graph, parameters)
        inputs = layout.unpack(packed)
        rows = SamplingRows.unpack(inputs["sampling_ints"], inputs["sampling_floats"])
        logits = model.logits(hidden[inputs["hidden_rows"]], max_over_shards(inputs["num_rows"]))
        return _with_bias(model, logits, rows, sampling)

    return row_logits


def make_sample_processed(
    graph: nnx.GraphDef[CausalLM],
    shape: StepShape,
    layout: PackedLayout,
    compiled: "CompiledProcessors",
    *,
    from_host: bool,
) -> Callable[..., Any]:
    """The function `(parameters, hidden, sampling, last_tokens, packed) -> (SampledRows [M], sampling, last_tokens)`.

    With `from_host` it takes logits float32 [M, V] as well: those of `row_logits`, as processors have changed them.
    """

    def alter(
        model: CausalLM, logits: jax.Array, rows: SamplingRows, state: SamplingState, given: dict[str, jax.Array]
    ) -> jax.Array:
        found = given["logits"] if from_host else _with_bias(model, logits, rows, state)
        is_allowed = allowed_tokens(given["masks"], found.shape[1], WHOLE)
        found = jnp.where(is_allowed, found, -jnp.inf)
        changed = compiled.apply(found, rows.temperature, given["uses"], given["numbers"])
        # What is forbidden stays so.
        return jnp.where(is_allowed & ~jnp.isnan(changed), jnp.minimum(changed, _LARGEST), -jnp.inf)

    def sample_processed(
        parameters: Any,
        hidden: jax.Array,
        sampling: SamplingState,
        last_tokens: jax.Array,
        packed: jax.Array,
        *logits: jax.Array,
    ) -> tuple[SampledRows, SamplingState, jax.Array]:
        model = nnx.merge(graph, parameters)
        inputs = layout.unpack(packed)
        rows = SamplingRows.unpack(inputs["sampling_ints"], inputs["sampling_floats"])
        given = {name: inputs[name] for name in ("masks", "uses", "numbers")}
        given |= {"logits": logits[0]} if logits else {}
        sampled, sampling = sample_in_blocks(
            model,
            hidden[inputs["hidden_rows"]],
            rows,
            sampling,
            max_over_shards(inputs["num_rows"]),
            shape,
            inputs["masks"],
            given,
            alter,
        )
        return sampled, sampling, put_last_tokens(last_tokens, rows, sampled)

    return sample_processed


def _with_bias(model: CausalLM, logits: jax.Array, rows: SamplingRows, state: SamplingState) -> jax.Array:
    def part(logits: jax.Array, rows: SamplingRows, state: SamplingState, vocabulary: Vocabulary) -> jax.Array:
        del vocabulary
        return process(logits, rows, state, lambda: logits)

    found: jax.Array = over_vocabulary(part, model.options.mesh, (SPLIT, SAME, SPLIT), SPLIT)(logits, rows, state)
    return found
