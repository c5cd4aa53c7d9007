"""Programs take, give away and return what their records declare."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from jaxllm.config import EngineConfig
from jaxllm.errors import EngineError
from jaxllm.executor import program_table
from jaxllm.executor.compile.generation import generation_programs
from jaxllm.executor.compile.program import ProgramSet
from jaxllm.executor.device_state import DeviceState
from jaxllm.executor.program_table import PROGRAMS, STEP, ProgramRecord, find_record
from jaxllm.executor.resolve import resolve_config
from jaxllm.executor.sampler.rows import SamplingState
from jaxllm.models.cache import Cache
from jaxllm.models.layers import adapter_slots
from jaxllm.models.layers.expert_slots import ExpertSlots
from jaxllm.pallas_kernels.low_rank import TokenSlots


@pytest.fixture(scope="module")
def programs() -> ProgramSet[DeviceState]:
    options = {"max_num_batched_tokens": 8, "max_num_seqs": 4, "enable_prompt_embeds": True}
    options |= {"enable_lora": True, "lora_vectors": True}
    return generation_programs(resolve_config(EngineConfig.from_options(options)), 8)


def test_every_record_of_the_module_is_in_the_table() -> None:
    found = {each.name for each in vars(program_table).values() if isinstance(each, ProgramRecord)}
    assert found == {STEP.name, *(record.name for record in PROGRAMS)}
    assert len({record.name for record in PROGRAMS}) == len(PROGRAMS)


DONATED = {
    "step_1": (2,), "step_8": (2,), "empty_adapters": (), "set_adapter": (0,),
    "row_squares": (), "scale_adapter": (2,),
    "sample_constrained": (2, 3), "set_row": (0,), "set_bias": (0,), "set_pages": (0,),
    "copy_pages": (0,), "set_embeddings": (0,), "empty_state": (), "prompt_logprobs": (), "listed_logprobs": (),
}  # fmt: skip
"""Arguments that each program of an engine without stages and processors takes for good."""


def test_programs_give_away_what_they_update_and_return_what_they_declare(programs: ProgramSet[DeviceState]) -> None:
    assert {name: program.donated for name, program in programs.programs.items()} == DONATED
    for name, program in programs.programs.items():
        outputs = jax.eval_shape(program.function, *program.arguments)
        assert str(jax.tree.structure(outputs)) == str(jax.tree.structure(program.result)), name


def test_a_step_without_slots_has_nothing_of_adapters(
    programs: ProgramSet[DeviceState], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LoRA that is off costs nothing: no operand, no field of the packed input, and no operation."""

    def met(*_: object, **__: object) -> None:
        raise AssertionError("an adapter in an engine that takes none")

    for where in (adapter_slots.AdapterSlots, adapter_slots.HeadSlots, ExpertSlots):
        monkeypatch.setattr(where, "__init__", met)
    monkeypatch.setattr(TokenSlots, "of", met)
    options = EngineConfig.from_options({"max_num_batched_tokens": 8, "max_num_seqs": 4})
    plain = generation_programs(resolve_config(options), 8)
    step, shape = plain.programs["step_8"], plain.shape
    assert step.arguments[1] == ()
    assert not [name for name in shape.layout(plain.buckets.all[-1]).host_buffer()[1] if "adapter" in name]
    assert "adapter" not in step.lower().as_text()
    assert set(programs.programs) - set(plain.programs) >= {"empty_adapters", "set_adapter"}
    # One step for each size, with slots or without.
    assert [name for name in plain.programs if "step" in name] == [name for name in programs.programs if "step" in name]


def test_steps_while_a_drafter_rests_are_those_of_an_engine_without_one() -> None:
    options = {"max_num_batched_tokens": 16, "max_num_seqs": 4, "max_model_len": 64}
    head = {"speculative_config": {"method": "eagle3", "model": "demo-eagle3", "num_speculative_tokens": 4}}
    without, drafting = (
        generation_programs(resolve_config(EngineConfig.from_options({**options, **each})), 8) for each in ({}, head)
    )
    assert [name for name in drafting.programs if "plain" in name] == ["plain_step_1", "plain_step_8"], "of decodes"
    for tokens in (1, 8):
        plain = drafting.programs[f"plain_step_{tokens}"].lower().as_text()
        wanted = without.programs[f"step_{tokens}"].lower().as_text()
        assert plain.replace(f"jit_plain_step_{tokens}", f"jit_step_{tokens}_tokens") == wanted


def test_a_program_of_an_unknown_name_is_an_error() -> None:
    with pytest.raises(EngineError, match=r"program 'set_paegs' is unknown \(known: steps and empty_state"):
        find_record("set_paegs")


def test_results_replace_the_parts_of_the_state_that_are_declared() -> None:
    zeros, ones = jnp.zeros(2), jnp.ones(2)
    state = DeviceState(Cache((zeros,)), zeros, SamplingState(zeros, zeros), zeros, zeros)
    holder = SimpleNamespace(state=state, adapters=(zeros,))
    assert program_table.COPY_PAGES.take_results(holder, (ones,)) is None
    assert holder.state.kv_cache.pages == (ones,)
    assert holder.state.hidden is zeros
    sampling = SamplingState(ones, ones)
    assert program_table.SAMPLE_CONSTRAINED.take_results(holder, ("sampled", sampling, ones)) == "sampled"
    assert (holder.state.sampling, holder.state.last_tokens) == (sampling, ones)
    assert program_table.ROW_LOGITS.take_results(holder, "logits") == "logits"
    assert program_table.SET_ADAPTER.take_results(holder, (ones,)) is None
    assert holder.adapters == (ones,)
    assert program_table.STEP.take_results(holder, ("sampled", state)) == "sampled"
    assert holder.state is state
    empty = SimpleNamespace()
    assert program_table.EMPTY_STATE.take_results(empty, state) is None
    assert empty.state is state
