"""States of recurrent layers: tokens do not depend on chunks, neighbours, preemption, prefix hits or former tenants."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Lfm2Config, Lfm2ForCausalLM, Mamba2Config, Mamba2ForCausalLM

from jaxllm.engine.engine import Engine
from jaxllm.requests.beam_options import BeamOptions
from jaxllm.requests.outputs import RankedSequence
from tests.conftest import RunPython
from tests.e2e.driving import make_engine, request, run

PAGE, VOCABULARY = 4, 128
OPTIONS: dict[str, Any] = {
    "block_size": PAGE, "max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 160, "dtype": "float32",
    "mamba_block_size": 24, "attention_backend": "xla", "max_state_snapshots": 6,
}  # fmt: skip
ROOMY, TIGHT = 400, 48
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 30, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Convolutions around one layer of attention, with weights that make tokens differ."""
    torch.manual_seed(0)
    config = Lfm2Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2,
        num_hidden_layers=4, layer_types=["conv", "conv", "full_attention", "conv"], max_position_embeddings=256,
        block_auto_adjust_ff_dim=False, tie_word_embeddings=False, initializer_range=0.5,
    )  # fmt: skip
    made = tmp_path_factory.mktemp("lfm2")
    Lfm2ForCausalLM(config).save_pretrained(made)
    return made


def make(folder: Path, pages: int = ROOMY, **options: Any) -> Engine:
    return make_engine(model=str(folder), **{**OPTIONS, "num_gpu_blocks_override": pages, **options})


def prompts() -> list[list[int]]:
    """Some begin alike, and one has a single token."""
    rng = np.random.default_rng(0)
    first = rng.integers(3, VOCABULARY, 60).tolist()
    own = [rng.integers(3, VOCABULARY, int(length)).tolist() for length in (1, 50, 9, 33, 20, 64, 5, 17)]
    return [tokens if index % 2 == 0 else first[: 20 + 6 * index] + tokens for index, tokens in enumerate(own)]


def tokens_of(engine: Engine, **params: Any) -> dict[str, list[int]]:
    requests = [request(index, prompt, **{**GREEDY, **params}) for index, prompt in enumerate(prompts())]
    return {name: answer.token_ids for name, answer in run(engine, requests).items()}


def beams_of(engine: Engine) -> list[list[int]]:
    beams = BeamOptions(width=3, n=3)
    engine.add_request(request("beams", prompts()[3], **GREEDY, beam_search=beams))
    engine.add_request(request("beside", prompts()[1], **GREEDY))
    found: list[RankedSequence] = []
    while engine.has_unfinished_requests():
        for output in engine.step():
            found += output.sequences or []
        engine.scheduler.check_integrity()
    return [each.token_ids for each in found]


@pytest.fixture(scope="module")
def alone(folder: Path) -> Iterator[Engine]:
    """One request at a time, in larger chunks, without a prefix cache."""
    engine = make(
        folder, max_num_seqs=3, max_num_batched_tokens=32, enable_prefix_caching=False, async_scheduling=False
    )
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def expected(alone: Engine) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts()):
        found[str(index)] = run(alone, [request(index, prompt, **GREEDY)])[str(index)].token_ids
    assert len({token for tokens in found.values() for token in tokens}) > 30, "tokens that tell nothing apart"
    return found


@pytest.fixture(scope="module")
def shared(folder: Path) -> Iterator[Engine]:
    engine = make(folder, enforce_eager=False)
    yield engine
    engine.close()


def test_tokens_are_those_of_transformers(folder: Path, expected: dict[str, list[int]]) -> None:
    model = Lfm2ForCausalLM.from_pretrained(folder).eval()
    for index, prompt in enumerate(prompts()):
        answer = expected[str(index)]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1].numpy()
        np.testing.assert_allclose(logits[np.arange(len(answer)), answer], logits.max(axis=-1), atol=1e-4)


def test_chunks_batches_and_hits(shared: Engine, expected: dict[str, list[int]]) -> None:
    """The second time around, slots have had other tenants, and prompts begin with snapshots."""
    for _ in range(3):
        assert tokens_of(shared) == expected
    assert shared.pages.prefix_hits > 100
    assert shared.pages.snapshots is not None
    assert len(shared.pages.snapshots) == 6, "all are used, and some were evicted"


def test_a_prompt_that_is_repeated_is_found_up_to_its_last_page(shared: Engine, expected: dict[str, list[int]]) -> None:
    assert shared.reset_prefix_cache()
    prompt = prompts()[5]
    for cached in (0, (len(prompt) - 1) // PAGE * PAGE):
        answer = run(shared, [request("again", prompt, **GREEDY)])["again"]
        assert (answer.token_ids, answer.num_cached_tokens) == (expected["5"], cached)


def test_what_prompts_share_is_found_by_the_third(shared: Engine) -> None:
    """The second finds its pages, but no state after them, and makes the snapshot."""
    assert shared.reset_prefix_cache()
    system, hits = prompts()[5][:18], []
    for index in range(3):
        own = [3 + index] * 30
        hits.append(run(shared, [request(index, system + own, **GREEDY)])[str(index)].num_cached_tokens)
    assert hits == [0, 0, 16]


def test_salts_share_nothing(shared: Engine, expected: dict[str, list[int]]) -> None:
    """Two tenants with the same prompt do not even share a state."""
    assert shared.reset_prefix_cache()
    for salt, cached in (("mine", 0), ("yours", 0), ("mine", 16)):
        asked = request("salted", prompts()[4], **GREEDY)
        asked.cache_salt = salt
        answer = run(shared, [asked])["salted"]
        assert (answer.token_ids, answer.num_cached_tokens) == (expected["4"], cached)


@pytest.mark.parametrize(
    "options",
    [{"layer_stack": "scan"}, pytest.param({"async_scheduling": False}, marks=pytest.mark.exhaustive)],
    ids=["scan", "sync"],
)
def test_preemption(folder: Path, expected: dict[str, list[int]], options: dict[str, Any]) -> None:
    engine = make(folder, TIGHT, **options)
    try:
        assert tokens_of(engine) == expected
        assert engine.scheduler.num_preemptions > 0
        assert tokens_of(engine) == expected
    finally:
        engine.close()


def test_aborted_requests_leave_nothing_behind(shared: Engine, expected: dict[str, list[int]]) -> None:
    for index, prompt in enumerate(prompts()):
        shared.add_request(request(f"gone-{index}", prompt, **GREEDY))
    for index in range(4):
        shared.step()
        shared.abort_request(f"gone-{index}")
        shared.scheduler.check_integrity()
    shared.abort_request([f"gone-{index}" for index in range(len(prompts()))])
    found = tokens_of(shared)
    assert {name: found[name] for name in expected} == expected


def test_beams_take_their_states_along(alone: Engine, shared: Engine) -> None:
    wanted = beams_of(alone)
    assert len({tuple(tokens) for tokens in wanted}) == 3
    assert beams_of(shared) == wanted
    assert beams_of(shared) == wanted, "with a prefix hit"


@pytest.mark.slow
def test_a_model_without_attention_has_no_pages(tmp_path: Path) -> None:
    """They count tokens, so that prefixes are found, and take no memory. Its states remember all that was."""
    torch.manual_seed(0)
    config = Mamba2Config(
        vocab_size=VOCABULARY, hidden_size=32, state_size=16, num_hidden_layers=2, head_dim=8, num_heads=8, n_groups=2,
        initializer_range=0.5,
    )  # fmt: skip
    model = Mamba2ForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    engine = make_engine(model=str(tmp_path), **{**OPTIONS, "max_num_seqs": 3, "max_num_batched_tokens": 8})
    try:
        assert engine.runner.calls.state.kv_cache.pages == ()
        found = tokens_of(engine)
        for index, prompt in enumerate(prompts()):
            answer = found[str(index)]
            with torch.no_grad():
                logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1].numpy()
            np.testing.assert_allclose(logits[np.arange(len(answer)), answer], logits.max(axis=-1), atol=1e-4)
        assert tokens_of(engine) == found
        assert engine.pages.prefix_hits > 0
        assert beams_of(engine) == beams_of(engine)
    finally:
        engine.close()


ON_TWO_DEVICES = """
import json, sys
from tests.e2e.driving import make_engine, request, run

options, prompts, params = json.loads(sys.argv[1])
engine = make_engine(**options, tensor_parallel_size=2)

def tokens():
    asked = [request(index, prompt, **params) for index, prompt in enumerate(prompts)]
    return {name: answer.token_ids for name, answer in run(engine, asked).items()}

found = [tokens(), tokens()]
(states,) = engine.runner.calls.state.kv_cache.states[0]
shares = [states.shape[-1], states.addressable_shards[0].data.shape[-1]]
print(json.dumps([found, shares, engine.scheduler.num_preemptions, engine.pages.prefix_hits]))
"""


@pytest.mark.slow
def test_devices_share_the_channels_of_states(
    folder: Path, expected: dict[str, list[int]], run_python: RunPython
) -> None:
    options = {"model": str(folder), **OPTIONS, "num_gpu_blocks_override": TIGHT}
    done = run_python("-c", ON_TWO_DEVICES, json.dumps([options, prompts(), GREEDY]), devices=2)
    assert not done.returncode, done.stderr
    found, shares, preemptions, hits = json.loads(done.stdout)
    assert found == [expected, expected]
    assert shares == [32, 16]
    assert preemptions > 0
    assert hits > 0
