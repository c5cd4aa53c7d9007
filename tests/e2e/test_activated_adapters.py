"""Adapters that start at an invocation in the prompt (aLoRA): PEFT's tokens, and pages shared with the model."""

import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import peft
import pytest
import torch

from jaxllm.engine.engine import Engine
from jaxllm.requests.beam_options import BeamOptions
from jaxllm.requests.lora_request import LoRARequest
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from tests.e2e.driving import make_engine, request, run
from tests.models.adapters.test_reading import ATTENTION, small_model
from tests.models.adapters.trained import save, train

INVOCATION, BLOCK, MAX_TOKENS = [3, 4, 5], 8, 6
TEXT = np.random.default_rng(2).integers(10, 60, 40).tolist()
PROMPTS = {
    "without it": TEXT[:21],
    "at the start": [*INVOCATION, *TEXT[:10]],
    "at the end": [*TEXT[:20], *INVOCATION],
    "in the middle": [*TEXT[:17], *INVOCATION, *TEXT[17:30]],
    "where a page begins": [*TEXT[:16], *INVOCATION, *TEXT[17:30]],
    "twice": [*TEXT[:5], *INVOCATION, *TEXT[5:22], *INVOCATION, 12, 13],
    "half of it later": [*TEXT[:12], *INVOCATION, *TEXT[12:20], *INVOCATION[:2]],
    "shorter than it": [3, 4],
}


class Served(NamedTuple):
    """An engine, folders of adapters, and their PEFT models: one that is activated, and a plain one."""

    engine: Engine
    folders: dict[str, Path]
    models: dict[str, peft.PeftModel]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("activated")
    given: dict[str, dict[str, Any]] = {"activated": {"alora_invocation_tokens": INVOCATION}, "plain": {}}
    models, folders = {}, {}
    for name, options in given.items():
        torch.manual_seed(0)
        models[name] = train(small_model(root / "base"), spread=0.4, target_modules=ATTENTION, **options)
        folders[name] = save(models[name], root / name)
    engine = make_engine(
        model=str(root / "base"),
        dtype="float32",
        enable_lora=True,
        max_loras=2,
        max_lora_rank=8,
        block_size=BLOCK,
        max_model_len=64,
        max_num_seqs=8,
        max_num_batched_tokens=16,
    )
    yield Served(engine, folders, models)
    engine.close()


def asking(served: Served, name: str, prompt: list[int], adapter: str | None, max_tokens: int = MAX_TOKENS) -> Request:
    made = request(name, prompt, temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    if adapter is not None:
        made.lora_request = LoRARequest(adapter, 1, str(served.folders[adapter]))
    return made


def expected(served: Served, prompt: list[int], adapter: str | None, max_tokens: int = MAX_TOKENS) -> list[int]:
    """PEFT's tokens."""
    model = served.models[adapter or "plain"]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with model.disable_adapter() if adapter is None else nullcontext():
            return _generated(model, prompt, max_tokens)


def _generated(model: Any, prompt: list[int], max_tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        min_new_tokens=max_tokens,
        max_new_tokens=max_tokens,
        eos_token_id=None,
        pad_token_id=0,
    )
    found: list[int] = out[0, len(prompt) :].tolist()
    return found


def test_tokens_are_those_of_peft(served: Served) -> None:
    """Alone and together with others, in chunks, and again from the cache."""
    adapters = ("activated", None, "plain")
    wanted = {
        f"{name}, {adapter}": expected(served, prompt, adapter)
        for name, prompt in PROMPTS.items()
        for adapter in adapters
    }
    for _ in range(2):
        requests = [
            asking(served, f"{name}, {adapter}", prompt, adapter)
            for name, prompt in PROMPTS.items()
            for adapter in adapters
        ]
        found = run(served.engine, requests)
        assert {name: answer.token_ids for name, answer in found.items()} == wanted
    invoked = [name for name in PROMPTS if name not in ("without it", "shorter than it")]
    assert sum(wanted[f"{name}, activated"] != wanted[f"{name}, None"] for name in invoked) > len(invoked) // 2
    assert all(wanted[f"{name}, activated"] == wanted[f"{name}, None"] for name in set(PROMPTS) - set(invoked))


def cached(served: Served, prompt: list[int], adapter: str | None) -> int:
    return run(served.engine, [asking(served, "0", prompt, adapter)])["0"].num_cached_tokens


def test_pages_before_the_invocation_are_those_of_the_model(served: Served) -> None:
    assert served.engine.reset_prefix_cache()
    before, after = TEXT[:20], TEXT[20:32]
    prompt = [*before, *INVOCATION, *after]
    assert cached(served, prompt, None) == 0
    assert cached(served, prompt, "activated") == 16, "the third page has three tokens with the adapter"
    assert cached(served, prompt, "activated") == 32
    assert cached(served, prompt, None) == 32
    assert cached(served, prompt, "plain") == 0
    # What the adapter has computed first is found by the model, up to the invocation.
    other = [*before[::-1], *INVOCATION, *after]
    assert cached(served, other, "activated") == 0
    assert cached(served, other, None) == 16
    # With another invocation after it, the first one means nothing.
    assert cached(served, [*prompt, *INVOCATION, *TEXT[:6]], "activated") == 32
    # It is the same where a page with the first tokens of the adapter is filled by tokens that were generated.
    assert cached(served, [*TEXT[30:40], *INVOCATION], "activated") == 0
    tokens = run(served.engine, [asking(served, "0", [*TEXT[30:40], *INVOCATION], "activated")])["0"].token_ids
    assert cached(served, [*TEXT[30:40], *INVOCATION, *tokens], "activated") == 16
    assert cached(served, [*TEXT[30:40], *INVOCATION, *tokens], None) == 8


def test_a_preempted_request_goes_on(served: Served) -> None:
    """Pages for few requests: they come back, some after their prompt, and have the tokens that each has alone."""
    tight = make_engine(
        model=str(served.folders["activated"].parent / "base"),
        dtype="float32",
        enable_lora=True,
        max_loras=1,
        max_lora_rank=8,
        block_size=BLOCK,
        max_model_len=64,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        num_gpu_blocks_override=24,
    )
    try:
        prompts = [[*TEXT[index:30], *INVOCATION, *TEXT[:index]] for index in range(0, 28, 4)]
        requests = [asking(served, str(index), prompt, "activated", 20) for index, prompt in enumerate(prompts)]
        found = run(tight, requests)
        assert sum(each.num_preemptions for each in requests)
        for index, prompt in enumerate(prompts):
            assert found[str(index)].token_ids == expected(served, prompt, "activated", 20)
    finally:
        tight.close()


@pytest.mark.parametrize("adapter", ["activated", "plain"])
def test_pages_of_beams_are_those_of_the_adapter(served: Served, adapter: str) -> None:
    """Also where the first page is filled by what beams have generated."""
    assert served.engine.reset_prefix_cache()
    prompt = [12, *INVOCATION]
    asked = asking(served, "0", prompt, adapter, 14)
    asked.params = SamplingParams.from_dict(
        {"temperature": 0, "max_tokens": 14, "ignore_eos": True, "beam_search": BeamOptions(width=6, n=6)}
    )
    sequences = run(served.engine, [asked])["0"].sequences
    assert sequences is not None
    texts = [[*prompt, *sequence.token_ids] for sequence in sequences]
    assert cached(served, texts[0], adapter) == 16
    # One of each first page: what was asked before has left its own.
    for text in {tuple(text[:BLOCK]): text for text in texts}.values():
        assert cached(served, text, None) == 0
        assert cached(served, text, "plain" if adapter == "activated" else "activated") == 0
