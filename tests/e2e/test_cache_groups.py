"""Models with sliding windows: each group of layers has page tables of its own, and tokens do not depend on it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM, Qwen3Config, Qwen3ForCausalLM

from jaxllm.engine.engine import Engine
from jaxllm.requests.beam_options import BeamOptions
from jaxllm.requests.outputs import RankedSequence
from tests.e2e.driving import make_engine, request, run
from tests.thinned import thinned

WINDOW = 20
SIZES: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "max_position_embeddings": 256, "initializer_range": 0.5, "sliding_window": WINDOW,
}  # fmt: skip
SLIDING, FULL = "sliding_attention", "full_attention"
OPTIONS: dict[str, Any] = {
    "block_size": 16, "max_num_seqs": 4, "max_num_batched_tokens": 16, "attention_backend": "cpu"
}  # fmt: skip
ROOMY = 400
"""Pages that hold all that these tests compute."""


@pytest.fixture(scope="module")
def mixed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four layers in four tables: a scan over the first two goes from one table to the next."""
    torch.manual_seed(0)
    types = [SLIDING, SLIDING, FULL, SLIDING]
    config = Qwen3Config(**SIZES, num_hidden_layers=4, use_sliding_window=True, layer_types=types)
    folder = tmp_path_factory.mktemp("mixed")
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def windowed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Windows everywhere."""
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("windowed")
    MistralForCausalLM(MistralConfig(**SIZES, num_hidden_layers=2)).save_pretrained(folder)
    return folder


def prompts() -> list[list[int]]:
    """Up to several windows long; some begin alike."""
    rng = np.random.default_rng(0)
    first = rng.integers(3, 128, 80).tolist()
    own = [rng.integers(3, 128, int(length)).tolist() for length in rng.integers(1, 90, 8)]
    return [tokens if index % 2 else first[: 20 + 10 * index] + tokens for index, tokens in enumerate(own)]


def tokens_of(engine: Engine) -> dict[str, list[int]]:
    params = {"temperature": 0, "max_tokens": 50, "ignore_eos": True}
    requests = [request(index, prompt, **params) for index, prompt in enumerate(prompts())]
    return {name: answer.token_ids for name, answer in run(engine, requests).items()}


def beams_of(engine: Engine) -> list[list[int]]:
    params: dict[str, Any] = {"temperature": 0, "max_tokens": 50, "ignore_eos": True}
    engine.add_request(request("beams", prompts()[2], **params, beam_search=BeamOptions(width=4, n=4)))
    found: list[RankedSequence] = []
    while engine.has_unfinished_requests():
        for output in engine.step():
            found += output.sequences or []
        engine.scheduler.check_integrity()
    return [each.token_ids for each in found]


@pytest.fixture(scope="module")
def plain(mixed_folder: Path) -> Iterator[Engine]:
    """Without groups."""
    engine = make_engine(
        model=str(mixed_folder), **OPTIONS, num_gpu_blocks_override=ROOMY, disable_hybrid_kv_cache_manager=True
    )
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def expected(plain: Engine) -> dict[str, list[int]]:
    assert plain.info.cache_windows == (0,)
    found = tokens_of(plain)
    assert len({token for tokens in found.values() for token in tokens}) > 30, "tokens that tell nothing apart"
    return found


@pytest.mark.parametrize("stack", ["loop", "scan"])
def test_tokens_are_those_without_groups(
    mixed_folder: Path, plain: Engine, expected: dict[str, list[int]], stack: str
) -> None:
    engine = make_engine(
        model=str(mixed_folder), **OPTIONS, num_gpu_blocks_override=ROOMY, layer_stack=stack,
        enforce_eager=stack == "loop",
    )  # fmt: skip
    try:
        assert engine.info.cache_windows == (0, WINDOW, WINDOW, WINDOW)
        assert tokens_of(engine) == expected
        hits = engine.pages.prefix_hits
        assert tokens_of(engine) == expected
        assert engine.pages.prefix_hits > hits + 300
        assert beams_of(engine) == beams_of(plain)
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("ahead", "attention", "size", "pages"),
    [(True, "cpu", 16, 30), (False, "cpu", 16, 30), pytest.param(True, "xla", 4, 90, marks=pytest.mark.exhaustive)],
)
def test_preempted(
    mixed_folder: Path, expected: dict[str, list[int]], ahead: bool, attention: str, size: int, pages: int
) -> None:
    options = {**OPTIONS, "attention_backend": attention, "block_size": size, "max_model_len": 220}
    engine = make_engine(model=str(mixed_folder), **options, num_gpu_blocks_override=pages, async_scheduling=ahead)
    try:
        assert tokens_of(engine) == expected
        assert engine.scheduler.num_preemptions > 2
    finally:
        engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("devices", thinned([4], [2]))
def test_split_over_devices(mixed_folder: Path, expected: dict[str, list[int]], devices: int) -> None:
    """On four devices the two KV heads are there twice; some requests are preempted.

    On two, the step is compiled as it is for users.
    """
    pages = {"num_gpu_blocks_override": 30, "max_model_len": 220, "optimization_level": 1 if devices == 2 else 0}
    engine = make_engine(model=str(mixed_folder), **OPTIONS, **pages, tensor_parallel_size=devices)
    try:
        assert engine.info.cache_windows == (0, WINDOW, WINDOW, WINDOW)
        assert tokens_of(engine) == expected
        assert engine.scheduler.num_preemptions > 2
    finally:
        engine.close()


def test_a_long_generation_holds_few_pages(windowed_folder: Path) -> None:
    """Of a model with windows everywhere: as many pages as hold its window and a chunk, however long it gets."""
    plain = make_engine(
        model=str(windowed_folder), **OPTIONS, num_gpu_blocks_override=30, disable_hybrid_kv_cache_manager=True
    )
    engine = make_engine(model=str(windowed_folder), **OPTIONS, num_gpu_blocks_override=6)
    try:
        assert engine.info.cache_windows == (WINDOW,)
        prompt, found = prompts()[2], list[list[int]]()
        for each in (engine, plain):
            each.add_request(request("long", prompt, temperature=0, max_tokens=256 - len(prompt), ignore_eos=True))
            found.append([])
            while each.has_unfinished_requests():
                found[-1] += [token for output in each.step() for token in output.token_ids]
        assert len(found[0]) == 256 - len(prompt)
        assert found[0] == found[1]
        assert engine.scheduler.num_preemptions == 0
    finally:
        engine.close()
        plain.close()
