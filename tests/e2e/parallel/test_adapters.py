"""Adapters over several devices: the tokens are those of one."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from jaxllm.requests.request import Request
from tests.adapter_folders import write_adapter
from tests.e2e.driving import make_engine, run
from tests.e2e.parallel.test_hosts import process
from tests.e2e.test_adapters import OPTIONS, prompts, with_adapter
from tests.ports import free_ports

HOSTS = """
import json, sys
from jaxllm import LLM, LoRARequest, SamplingParams
from jaxllm.config import EngineConfig
from jaxllm.load import follow_engine
from tests.e2e.parallel.generate_on_devices import PROMPTS, options_for
rank, size, port, *folders = sys.argv[1:]
lora = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8, "lora_vectors": True, "dtype": "float32"}
hosts = {"nnodes": int(size), "node_rank": int(rank), "master_port": int(port)} if int(size) > 1 else {}
options = options_for(size) | lora | hosts
if int(rank):
    follow_engine(EngineConfig.from_options(options))
else:
    with LLM(**options) as llm:
        params, found = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True), []
        loras = [None, *(LoRARequest(f"adapter-{index}", index + 1, folder) for index, folder in enumerate(folders))]
        llm.add_lora(loras[1])
        for shift in range(2):
            given = [loras[(index + shift) % len(loras)] for index in range(len(PROMPTS))]
            outputs = llm.generate(PROMPTS, params, lora_request=given, use_tqdm=False)
            found += [list(output.outputs[0].token_ids) for output in outputs]
            llm.remove_lora(1)
        print(json.dumps(found), flush=True)
"""

WAYS: tuple[dict[str, object], ...] = (
    {"tensor_parallel_size": 2, "layer_stack": "scan"},
    {"pipeline_parallel_size": 2},
    {"mesh": "data=2"},
)


def tokens(folders: list[Path], **options: object) -> list[list[int]]:
    """The tokens of eight requests, with four adapters in two slots, and some with none."""
    engine = make_engine(
        **{
            **OPTIONS,
            "max_num_batched_tokens": 8,
            "enable_lora": True,
            "max_loras": 2,
            "max_lora_rank": 8,
            "dtype": "float32",
            "lora_vectors": True,
            **options,
        }
    )
    try:
        requests = [
            with_adapter(str(index), prompt, folders[index % 4] if index % 5 < 4 else None)
            for index, prompt in enumerate(prompts(8))
        ]
        return [answer.token_ids for _, answer in sorted(run(engine, requests).items())]
    finally:
        engine.close()


# CI has adapters on several devices in `tests/e2e/test_expert_adapters.py`.
@pytest.mark.exhaustive
def test_several_devices_give_the_tokens_of_one(tmp_path: Path) -> None:
    folders = [write_adapter(tmp_path / str(seed), seed, scale=0.3, use_dora=seed % 2 == 1) for seed in range(4)]
    wanted = tokens(folders)
    for way in WAYS:
        assert tokens(folders, **way) == wanted, way


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", [{}, *WAYS], ids=str)
def test_many_adapters_through_few_slots(tmp_path: Path, way: dict[str, object]) -> None:
    """Each request has the tokens that it has alone, though it is preempted, cut into chunks, and finds prefixes."""
    folders = [write_adapter(tmp_path / str(seed), seed, (8, 4, 2)[seed % 3], scale=0.3) for seed in range(64)]
    sizes = {"num_gpu_blocks_override": 24, "max_num_seqs": 12}
    adapters = {"enable_lora": True, "max_loras": 8, "max_lora_rank": 8, "max_cpu_loras": 16}
    engine = make_engine(**{**OPTIONS, **sizes, **adapters, **way})
    try:
        given = prompts(64, seed=9)

        def each(index: int, name: str) -> Request:
            # The second half goes on where the first has begun, with the same adapters.
            prompt = given[index] if index < 64 else [*given[index - 64], 11, 12]
            drawn: dict[str, object] = {"temperature": 1.0, "seed": index} if index % 3 == 0 else {}
            return with_adapter(name, prompt, folders[index % 64], logprobs=1, max_tokens=24, **drawn)

        order = [first + half + number for first in range(0, 64, 8) for half in (0, 64) for number in range(8)]
        alone = [run(engine, [each(index, "alone")])["alone"] for index in range(128)]
        before, requests = engine.stats(), [each(index, str(index)) for index in order]
        found = run(engine, requests)
        assert [found[str(index)].token_ids for index in range(128)] == [answer.token_ids for answer in alone]
        for index, answer in enumerate(alone):
            # A prompt that is computed in other chunks has other last bits, also without adapters.
            together, apart = ([each.logprob for each in of.logprobs] for of in (found[str(index)], answer))
            assert together == pytest.approx(apart, abs=1e-3)
        after = engine.stats()
        assert sum(request.num_preemptions for request in requests) > 0
        assert after.prefix_hits > before.prefix_hits
        assert after.num_lora_writes - before.num_lora_writes >= 64
        assert after.num_lora_reads > 64
        assert after.num_compilations == 0
    finally:
        engine.close()


@pytest.mark.slow
def test_two_processes_of_one_engine_give_the_tokens_of_one(tmp_path: Path) -> None:
    """The first reads adapters, and the other gets what is in them: its disk has none."""
    folders = [str(write_adapter(tmp_path / str(seed), seed, scale=0.3, use_dora=seed == 1)) for seed in range(3)]
    found = []
    for size in (1, 2):
        port = free_ports()
        with ExitStack() as stack:
            arguments = [(str(rank), str(size), str(port), *([] if rank else folders)) for rank in range(size)]
            children = [stack.enter_context(process("-c", HOSTS, *each)) for each in arguments]
            said = [child.communicate(timeout=600) for child in children]
            assert [child.returncode for child in children] == [0] * size, [error[-2000:] for _, error in said]
            found.append(json.loads(said[0][0].splitlines()[-1]))
    assert found[1] == found[0]
    assert len(set(map(tuple, found[0]))) > len(found[0]) // 2
