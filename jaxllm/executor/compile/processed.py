"""The programs that engines with logits processors have beside the others."""

import numpy as np

from jaxllm.executor.compile.arrays import LEAF, Arrays, shardings
from jaxllm.executor.compile.data_shards import map_over_data_shards
from jaxllm.executor.compile.program import Program
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.executor.sampler.compiled_processors import CompiledProcessors
from jaxllm.executor.sampler.logprobs import Logprobs
from jaxllm.executor.sampler.processed import make_row_logits, make_sample_processed, processed_layout
from jaxllm.executor.sampler.sampler import SampledRows
from jaxllm.executor.step_program import DeviceState
from jaxllm.processors.interface import JaxLogitsProcessor


def processed_programs(arrays: Arrays[DeviceState], resolved: ResolvedConfig) -> tuple[dict[str, Program], list[str]]:
    """The programs by name, and what executables depend on: the processors' names and what they compute."""
    compiled = CompiledProcessors.of(resolved)
    programs = {}
    if compiled.processors:
        programs["sample_processed"] = _sample_processed(arrays, compiled, from_host=False)
    has_host = any(not issubclass(kind, JaxLogitsProcessor) for kind in resolved.processors)
    if has_host:
        programs["row_logits"] = _row_logits(arrays, compiled)
        programs["sample_from_host"] = _sample_processed(arrays, compiled, from_host=True)
    known = [f"{name} {digest}" for name, digest in compiled.digests().items()]
    return programs, [*known, *(["on the host"] if has_host else [])]


def _row_logits(arrays: Arrays[DeviceState], compiled: CompiledProcessors) -> Program:
    state = arrays.state
    layout = processed_layout(state.sampling, arrays.shape.shards, compiled.num_numbers, from_host=True)
    program = arrays.program(
        "row_logits",
        make_row_logits(arrays.graph, layout),
        state.hidden,
        state.sampling,
        arrays.of_shards(layout.size),
        result=LEAF,
        out_shardings=arrays.by_shard,
    )
    return map_over_data_shards(program)


def _sample_processed(arrays: Arrays[DeviceState], compiled: CompiledProcessors, *, from_host: bool) -> Program:
    state, shards = arrays.state, arrays.shape.shards
    layout = processed_layout(state.sampling, shards, compiled.num_numbers, from_host=from_host)
    rows = len(layout.host_buffer()[1]["hidden_rows"])
    logits = arrays.host(
        (shards * rows, state.sampling.bias.shape[1]), np.float32, "shards" if shards > 1 else None, "vocab"
    )
    program = arrays.program(
        "sample_from_host" if from_host else "sample_processed",
        make_sample_processed(arrays.graph, arrays.shape, layout, compiled, from_host=from_host),
        state.hidden,
        state.sampling,
        state.last_tokens,
        arrays.of_shards(layout.size),
        *((logits,) if from_host else ()),
        result=(SampledRows(LEAF, Logprobs(LEAF, LEAF, LEAF, LEAF), LEAF), state.sampling, LEAF),
        donated=(2, 3),
        out_shardings=(arrays.by_shard, shardings(state.sampling), shardings(state.last_tokens)),
    )
    return map_over_data_shards(program)
