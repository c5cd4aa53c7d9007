"""Requests with LoRA adapters: each gets its own, whatever else is in the batch, in the slots, or in the cache."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxllm.engine.engine import Engine
from jaxllm.errors import ConfigError, RequestError
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.find_model import find_model
from jaxllm.requests.lora_request import LoRARequest
from jaxllm.requests.request import Request
from tests.adapter_folders import write_adapter
from tests.e2e.driving import Answer, make_engine, request, run

ADAPTERS = 8
OPTIONS = {"max_num_batched_tokens": 32, "max_model_len": 128, "max_num_seqs": 8, "block_size": 8}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("adapters")
    # Of every rank that fits, and some of a few modules only.
    ranks, modules = (8, 4, 2, 8), (("q_proj", "v_proj"), ("down_proj",), ("k_proj", "o_proj", "gate_proj"))
    return [
        write_adapter(root / str(index), index, ranks[index % 4], 0.3, modules=modules[index % 3])
        for index in range(ADAPTERS)
    ]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = make_engine(
        enable_lora=True, max_loras=3, max_lora_rank=8, max_cpu_loras=4, enforce_eager=False, **OPTIONS
    )
    yield engine
    engine.close()


def with_adapter(name: str, prompt: list[int], folder: Path | None, **params: object) -> Request:
    made = request(name, prompt, **{"temperature": 0.0, "max_tokens": 6, "ignore_eos": True, **params})
    if folder is not None:
        made.lora_request = LoRARequest(f"adapter-{folder.name}", 1, str(folder))
    return made


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(10, 400, int(random.integers(3, 60))).tolist() for _ in range(count)]


def tokens(answers: dict[str, Answer], count: int) -> list[list[int]]:
    return [answers[str(index)].token_ids for index in range(count)]


def test_mixed_requests_are_what_each_is_alone(engine: Engine, folders: list[Path]) -> None:
    """Eight adapters and none through three slots, with chunks, prefixes that are found, and draws."""
    given = prompts(18)
    given += [[*given[0], 11, 12], [*given[0], 11, 12]]
    drawn: dict[str, object] = {"temperature": 1.0, "seed": 7}

    def each(index: int) -> Request:
        folder = None if index % 9 == 8 else folders[index % 9 % ADAPTERS]
        return with_adapter(str(index), given[index], folder, **(drawn if index % 2 else {}))

    mixed = tokens(run(engine, [each(index) for index in range(len(given))]), len(given))
    alone = [run(engine, [each(index)])[str(index)].token_ids for index in reversed(range(len(given)))]
    assert mixed == alone[::-1]
    base = run(engine, [with_adapter(str(index), prompt, None) for index, prompt in enumerate(given)])
    changed = sum(mixed[index] != base[str(index)].token_ids for index in range(0, len(given), 2))
    assert changed > len(given) // 4, "adapters that change nothing prove nothing"


def test_grammars_hold_with_adapters(engine: Engine, folders: list[Path], tokenizer: Any) -> None:
    """Requests with one grammar and several adapters, in one batch as alone."""
    prompt, grammar = prompts(1, seed=11)[0], {"regex": "[a-z]{3,9}( [a-z]{3,9}){2,9}"}
    made = [
        with_adapter(str(index), prompt, folder, max_tokens=40, ignore_eos=False, structured_outputs=grammar)
        for index, folder in enumerate([*folders[:3], None])
    ]
    found = tokens(run(engine, made), len(made))
    texts = tokenizer.batch_decode(found, skip_special_tokens=True)
    assert [text for text in texts if not re.fullmatch(grammar["regex"], text)] == []
    assert len(set(map(tuple, found))) > 1
    for index, folder in enumerate([*folders[:3], None]):
        again = with_adapter("0", prompt, folder, max_tokens=40, ignore_eos=False, structured_outputs=grammar)
        assert run(engine, [again])["0"].token_ids == found[index]


@pytest.mark.slow
def test_preemption_keeps_the_adapter(folders: list[Path]) -> None:
    options = {**OPTIONS, "num_gpu_blocks_override": 24, "max_num_seqs": 4}
    engine = make_engine(enable_lora=True, max_loras=2, max_lora_rank=8, **options)
    try:
        given = prompts(8, seed=1)
        requests = [
            with_adapter(str(index), prompt[:40], folders[index % 4], max_tokens=30)
            for index, prompt in enumerate(given)
        ]
        mixed = run(engine, requests)
        assert sum(each.num_preemptions for each in requests)
        for index, prompt in enumerate(given):
            again = with_adapter(str(index), prompt[:40], folders[index % 4], max_tokens=30)
            assert run(engine, [again])[str(index)].token_ids == mixed[str(index)].token_ids
    finally:
        engine.close()


def test_zeros_are_the_base_bit_by_bit(engine: Engine, tmp_path: Path) -> None:
    zeros, given = write_adapter(tmp_path / "zeros", scale=0.0), prompts(6, seed=2)
    plain = make_engine(**OPTIONS)
    try:
        wanted = run(plain, [with_adapter(str(i), each, None, logprobs=3) for i, each in enumerate(given)])
    finally:
        plain.close()
    for folder in (zeros, None):
        found = run(engine, [with_adapter(str(i), each, folder, logprobs=3) for i, each in enumerate(given)])
        for name, answer in wanted.items():
            assert found[name].token_ids == answer.token_ids
            assert found[name].logprobs == answer.logprobs


def test_other_weights_under_the_same_name_find_none_of_the_old_pages(engine: Engine, tmp_path: Path) -> None:
    prompt = prompts(1, seed=3)[0][:3] * 12
    folder = write_adapter(tmp_path / "changing", 1, scale=0.2)
    before = run(engine, [with_adapter("0", prompt, folder)])["0"]
    again = run(engine, [with_adapter("0", prompt, folder)])["0"]
    assert before.num_cached_tokens == 0
    assert (again.num_cached_tokens, again.token_ids) == (32, before.token_ids)
    assert run(engine, [with_adapter("0", prompt, None)])["0"].num_cached_tokens == 0
    write_adapter(folder, 2, scale=0.2)
    # What was read stays, until it is asked to be read again.
    assert run(engine, [with_adapter("0", prompt, folder)])["0"].token_ids == before.token_ids
    reloaded = with_adapter("0", prompt, folder)
    reloaded.lora_request = LoRARequest("adapter-changing", 1, str(folder), load_inplace=True)
    after = run(engine, [reloaded])["0"]
    assert after.num_cached_tokens == 0
    assert after.token_ids != before.token_ids
    # The same content under another name is the same.
    copy = with_adapter("0", prompt, folder)
    copy.lora_request = LoRARequest("a copy", 9, str(folder))
    assert run(engine, [copy])["0"].num_cached_tokens == 32


def test_an_adapter_that_cannot_be_read_ends_its_request_alone(
    engine: Engine, folders: list[Path], tmp_path: Path
) -> None:
    given = prompts(3, seed=4)
    wanted = run(engine, [with_adapter("1", given[1], folders[1])])["1"].token_ids
    engine.add_request(with_adapter("0", given[0], tmp_path / "nothing"))
    engine.add_request(with_adapter("1", given[1], folders[1]))
    engine.add_request(with_adapter("2", given[2], write_adapter(tmp_path / "wide", rank=16)))
    ended: dict[str, str | None] = {}
    found: list[int] = []
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.request_id == "1":
                found += output.token_ids
            elif output.finished:
                ended[output.request_id] = output.refusal
    assert found == wanted
    assert "adapter_config.json is not there" in str(ended["0"])
    assert "has rank 16; at most 8 is taken" in str(ended["2"])
    # It may be there later.
    write_adapter(tmp_path / "nothing")
    assert len(run(engine, [with_adapter("0", given[0], tmp_path / "nothing")])["0"].token_ids) == 6


@pytest.mark.slow
def test_loading_and_removing_under_traffic(engine: Engine, folders: list[Path]) -> None:
    given = prompts(40, seed=5)
    wanted = [
        run(engine, [with_adapter(str(index), prompt, folders[index % ADAPTERS])])[str(index)].token_ids
        for index, prompt in enumerate(given)
    ]
    found: dict[str, list[int]] = {}
    waiting = list(enumerate(given))
    while waiting or engine.has_unfinished_requests():
        for index, prompt in waiting[:2]:
            engine.add_request(with_adapter(str(index), prompt, folders[index % ADAPTERS]))
            # Requests that have it go on.
            engine.control.remove_lora(f"adapter-{(index * 3) % ADAPTERS}")
        waiting = waiting[2:]
        for output in engine.step():
            assert output.refusal is None
            found.setdefault(output.request_id, []).extend(output.token_ids)
    assert [found[str(index)] for index in range(len(given))] == wanted
    engine.scheduler.check_integrity()


@pytest.mark.slow
def test_adapters_with_magnitudes(folders: list[Path], tmp_path: Path) -> None:
    """In a mixed batch as alone; the others' results are what they are without vectors, and none outlives weights."""
    scaled = [write_adapter(tmp_path / f"scaled-{seed}", seed, scale=0.2, use_dora=True) for seed in range(2)]
    given, options = prompts(9, seed=6), {**OPTIONS, "enable_lora": True, "max_lora_rank": 8, "dtype": "float32"}
    plain = [None, folders[0], folders[1]]
    engine = make_engine(max_loras=3, **options)
    try:
        wanted = [
            run(engine, [with_adapter("0", each, plain[index % 3], logprobs=3)])["0"]
            for index, each in enumerate(given)
        ]
    finally:
        engine.close()
    engine = make_engine(max_loras=3, lora_vectors=True, **options)
    try:
        for index, each in enumerate(given):
            found = run(engine, [with_adapter("0", each, plain[index % 3], logprobs=3)])["0"]
            assert (found.token_ids, found.logprobs) == (wanted[index].token_ids, wanted[index].logprobs)
        which = [*scaled, None, folders[0]]
        mixed = [with_adapter(str(index), each, which[index % 4]) for index, each in enumerate(given)]
        together = tokens(run(engine, mixed), len(given))
        alone = [
            run(engine, [with_adapter("0", each, which[index % 4])])["0"].token_ids for index, each in enumerate(given)
        ]
        assert together == alone
        assert len({tuple(run(engine, [with_adapter("0", given[0], each)])["0"].token_ids) for each in which}) > 2
        # The factors are those of the weights that the engine has.
        path = "model.layers.0.self_attn.q_proj.weight"
        weight = next(each for each in Checkpoint(find_model("demo")).tensors if each.name == path)
        old = weight.read(np.dtype(np.float32))
        for changed in (old * 3, old):
            engine.control.start_weight_update()
            engine.control.update_weights([(path, changed)])
            engine.control.finish_weight_update()
            # What was in its slot already is what comes there now.
            before = run(engine, [with_adapter("0", given[1], scaled[0], logprobs=3)])["0"]
            engine.control.remove_lora(f"adapter-{scaled[0].name}")
            assert engine.reset_prefix_cache()
            again = run(engine, [with_adapter("0", given[1], scaled[0], logprobs=3)])["0"]
            assert before.logprobs == again.logprobs
        assert run(engine, [with_adapter("0", given[0], scaled[0])])["0"].token_ids == alone[0]
    finally:
        engine.close()


def test_a_slot_that_cannot_be_written_ends_the_requests_of_its_adapter(
    engine: Engine, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = prompts(6, seed=6)
    for name in [f"adapter-{index}" for index in range(ADAPTERS)]:
        engine.control.remove_lora(name)
    wanted = [
        run(engine, [with_adapter(str(index), prompt, folders[index % 2])])[str(index)].token_ids
        for index, prompt in enumerate(given)
    ]
    write = engine.runner.set_adapter

    def fail(slot: int, stages: Any) -> None:
        raise ValueError("no such slot")

    for index, prompt in enumerate(given):
        engine.add_request(with_adapter(str(index), prompt, folders[index % 2]))
    monkeypatch.setattr(engine.adapters, "_write", fail)
    engine.add_request(with_adapter("broken", given[0], folders[3]))
    engine.add_request(with_adapter("broken too", given[1], folders[3]))
    found: dict[str, list[int]] = {}
    refused: dict[str, str] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            found.setdefault(output.request_id, []).extend(output.token_ids)
            if output.refusal is not None:
                assert output.is_fault
                refused[output.request_id] = output.refusal
    assert refused.keys() == {"broken", "broken too"}
    assert "bringing adapter 'adapter-3' to the devices failed in the server: ValueError" in refused["broken"]
    assert [found[str(index)] for index in range(len(given))] == wanted
    monkeypatch.setattr(engine.adapters, "_write", write)
    assert len(run(engine, [with_adapter("again", given[0], folders[3])])["again"].token_ids) == 6


def test_statistics_name_the_adapters(folders: list[Path]) -> None:
    engine = make_engine(enable_lora=True, max_loras=1, max_lora_rank=8, **OPTIONS)
    try:
        for index in range(4):
            engine.add_request(with_adapter(str(index), [5, 6, 7], folders[index % 2] if index < 3 else None))
        assert engine.stats().waiting_loras == ("adapter-0", "adapter-1")
        while not (running := engine.stats().running_loras):
            engine.step()
        (name,) = running
        assert engine.stats().waiting_loras == ({"adapter-0": "adapter-1", "adapter-1": "adapter-0"}[name],)
        while engine.has_unfinished_requests():
            engine.step()
        stats = engine.stats()
        assert stats.running_loras == stats.waiting_loras == ()
        assert (stats.num_lora_reads, stats.num_lora_writes) == (2, 2)
    finally:
        engine.close()


def test_no_step_waits_for_an_adapter(engine: Engine, folders: list[Path]) -> None:
    """While adapters are read and swapped, every step brings a token to those who run."""
    engine.add_request(with_adapter("base", [5, 6, 7], None, max_tokens=100))
    for index in range(ADAPTERS):
        engine.control.remove_lora(f"adapter-{index}")
    before, missed, count = engine.stats().num_lora_writes, 0, 0
    for step in range(100):
        if step % 4 == 0:
            index = step // 4
            engine.add_request(with_adapter(str(index), [8, 9, 10 + index], folders[index % ADAPTERS], max_tokens=2))
        found = [output for output in engine.step() if output.request_id == "base"]
        count += len(found)
        missed += not found
    assert (count, missed) == (100, 0)
    while engine.has_unfinished_requests():
        engine.step()
    assert engine.stats().num_lora_writes - before >= ADAPTERS


def test_an_engine_without_slots_says_so() -> None:
    with pytest.raises(ConfigError, match="max_cpu_loras=1 must be at least max_loras=2"):
        make_engine(enable_lora=True, max_loras=2, max_cpu_loras=1)
    engine = make_engine(**OPTIONS)
    try:
        with pytest.raises(RequestError, match="this engine takes no adapters, asked for 'adapter-x'") as error:
            engine.add_request(with_adapter("0", [5, 6], Path("x")))
        assert error.value.parameter == "lora_request"
        with pytest.raises(RequestError, match="--enable-lora"):
            engine.control.add_lora("x", "x")
    finally:
        engine.close()


@pytest.mark.slow
def test_target_modules_have_slots_and_others_are_refused(folders: list[Path], tmp_path: Path) -> None:
    """Fewer slots take less memory, and the tokens of adapters that fit are the same."""
    given = prompts(3, seed=8)
    attention = write_adapter(tmp_path / "attention", 3, 8, 0.3, modules=("q_proj", "v_proj"))
    answers, sizes = [], []
    for targets in ((), ("qkv_proj",), ("self_attn.v_proj", "q_proj", "k_proj", "o_proj")):
        engine = make_engine(
            enable_lora=True, max_loras=1, max_lora_rank=8, lora_target_modules=targets, layer_stack="scan", **OPTIONS
        )
        try:
            sizes.append(sum(each.nbytes for each in engine.runner.calls.adapters))
            answers.append([run(engine, [with_adapter("0", each, attention)])["0"].token_ids for each in given])
            if targets:
                engine.add_request(with_adapter("mlp", given[0], folders[1]))
                outputs = [output for _ in iter(engine.has_unfinished_requests, False) for output in engine.step()]
                refusal = str(outputs[-1].refusal)
                assert "'model.layers.0.mlp.down_proj' is none of the modules that this server gives slots" in refusal
        finally:
            engine.close()
    assert answers[0] == answers[1] == answers[2]
    assert sizes[1] < sizes[2] < sizes[0]
    with pytest.raises(ConfigError, match="lora_target_modules: the model has no linear layer 'x_proj'; its layers"):
        make_engine(enable_lora=True, lora_target_modules=("q_proj", "x_proj"))


# `test_adapters_asleep.py` has adapters in stages.
@pytest.mark.exhaustive
def test_target_modules_of_stages(tmp_path: Path) -> None:
    """Each stage has the slots of its own layers."""
    attention = write_adapter(tmp_path / "attention", 3, 8, 0.3, modules=("q_proj", "v_proj"))
    answers = []
    for stages in (1, 2):
        engine = make_engine(
            enable_lora=True, lora_target_modules=("qkv_proj",), pipeline_parallel_size=stages, **OPTIONS
        )
        try:
            answers.append([run(engine, [with_adapter("0", each, attention)])["0"].token_ids for each in prompts(2)])
        finally:
            engine.close()
    assert answers[0] == answers[1]


@pytest.mark.exhaustive
def test_sixty_four_adapters_through_eight_slots(tmp_path: Path) -> None:
    """Each is what it is alone, bit by bit, and no stream waits for more than a step while adapters come and go."""
    folders = [write_adapter(tmp_path / str(seed), seed, (8, 4, 2)[seed % 3], 0.3) for seed in range(64)]
    options = {**OPTIONS, "max_num_seqs": 12, "block_size": 16, "num_gpu_blocks_override": 80}
    engine = make_engine(enable_lora=True, max_loras=8, max_lora_rank=8, max_cpu_loras=16, **options)
    try:
        given = prompts(128, seed=9)

        def each(index: int, name: str = "") -> Request:
            drawn: dict[str, object] = {"temperature": 1.0, "seed": index} if index % 3 == 0 else {}
            return with_adapter(name or str(index), given[index], folders[index % 64], logprobs=1, **drawn)

        # Two streams of the base model run all the time.
        streams = [with_adapter(f"stream {number}", given[number], None, max_tokens=60) for number in range(2)]
        wanted = {stream.request_id: run(engine, [stream])[stream.request_id].token_ids for stream in streams}
        alone = [run(engine, [each(index, "alone")])["alone"] for index in range(len(given))]
        found: dict[str, list[int]] = {}
        logprobs: dict[str, list[Any]] = {}
        silent, most_silent, rounds = [0, 0], 0, 0
        for index in range(len(given)):
            engine.add_request(each(index))
        for number in range(2):
            engine.add_request(with_adapter(f"stream {number}", given[number], None, max_tokens=60))
        while engine.has_unfinished_requests():
            told = set()
            for output in engine.step():
                assert output.refusal is None
                told.add(output.request_id)
                found.setdefault(output.request_id, []).extend(output.token_ids)
                logprobs.setdefault(output.request_id, []).extend(output.logprobs or ())
                if output.finished and output.request_id in wanted:
                    rounds += 1
                    assert found.pop(output.request_id) == wanted[output.request_id]
                    if len(found) < len(given):
                        number = int(output.request_id.split()[1])
                        engine.add_request(with_adapter(output.request_id, given[number], None, max_tokens=60))
                        silent[number] = -(10**6)
            for number in range(2):
                name = f"stream {number}"
                silent[number] = 0 if name in told else silent[number] + 1 if name in found else -(10**6)
                most_silent = max(most_silent, silent[number])
        for index, answer in enumerate(alone):
            assert found[str(index)] == answer.token_ids
            assert logprobs[str(index)] == answer.logprobs
        # Results come a step later than they are computed, and a chunk of others' prompts may fill one.
        assert most_silent <= 1
        assert rounds >= 2
        stats = engine.stats()
        assert stats.num_lora_writes > 64
        assert stats.num_compilations == 0
    finally:
        engine.close()
