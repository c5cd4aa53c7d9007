"""An engine with adapters sleeps: its slots take no memory meanwhile, and requests have their adapters afterwards."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxllm import LLM, LoRARequest, SamplingParams
from jaxllm.engine.engine import Engine
from tests.adapter_folders import write_adapter
from tests.e2e.text.conftest import SMALL

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPT = "Once upon a time there was"


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[LoRARequest | None]:
    root = tmp_path_factory.mktemp("lora")
    folders = [write_adapter(root / "one", 1, scale=0.3), write_adapter(root / "two", 2, scale=0.3, use_dora=True)]
    return [None, *(LoRARequest(path.name, number + 1, str(path)) for number, path in enumerate(folders))]


@pytest.fixture(scope="module", params=[1, 2], ids=["one-stage", "two-stages"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    # Nearly all the time goes into compiling: steps of two sizes, of layers that are alike.
    quick = {"enforce_eager": True, "max_num_batched_tokens": 8, "layer_stack": "scan"}
    options: dict[str, Any] = {**SMALL, **quick, "strict_compilation": True, "enable_sleep_mode": True}
    options |= {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8, "lora_vectors": True}
    with LLM("demo", **options, pipeline_parallel_size=request.param) as made:
        yield made


def tokens_of(llm: LLM, adapters: list[LoRARequest | None]) -> list[list[int]]:
    outputs = llm.generate([PROMPT] * len(adapters), GREEDY, use_tqdm=False, lora_request=adapters)
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("tags", [None, ["kv_cache"]])
def test_adapters_are_in_their_slots_after_sleep(
    llm: LLM, adapters: list[LoRARequest | None], level: int, tags: list[str] | None
) -> None:
    before = tokens_of(llm, adapters)
    assert len({tuple(each) for each in before}) == 3
    engine = llm.llm_engine.engine
    assert isinstance(engine, Engine)
    assert engine.adapters is not None
    num_reads = engine.adapters.stats().num_reads
    slots = [leaf for calls in engine.runner.calls.every for leaf in calls.adapters]
    llm.sleep(level)
    assert all(leaf.is_deleted() for leaf in slots)
    assert not any(calls.adapters or calls.row_squares for calls in engine.runner.calls.every)
    if tags:
        llm.wake_up(tags=tags)
        assert not engine.runner.calls.adapters, "weights are asleep"
    llm.wake_up()
    assert tokens_of(llm, adapters) == before
    assert engine.adapters.stats().num_reads == num_reads


def test_requests_that_are_kept_go_on_with_their_adapter(llm: LLM, adapters: list[LoRARequest | None]) -> None:
    whole = tokens_of(llm, adapters)
    for adapter, wanted in zip(adapters, whole, strict=True):
        stream = llm.stream(PROMPT, GREEDY, lora_request=adapter)
        got = list(next(stream).token_ids)
        llm.sleep(1, mode="keep")
        llm.wake_up()
        got += [token for delta in stream for token in delta.token_ids]
        assert got == wanted


def test_an_update_of_the_weights_wakes_the_slots(
    llm: LLM, adapters: list[LoRARequest | None], demo_folder: Path
) -> None:
    before = tokens_of(llm, adapters)
    llm.sleep(2)
    llm.update_weights(str(demo_folder))
    llm.wake_up()
    assert tokens_of(llm, adapters) == before
