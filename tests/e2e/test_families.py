"""Families' greedy tokens through the engine are transformers': batched, chunked, preempted, with prefix hits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.kv_shape import CacheLayout
from tests.e2e.driving import make_engine, request, run
from tests.e2e.test_async_scheduling import synchronous
from tests.models.every_family import FAMILIES, covering

LENGTHS, TOKENS, VOCABULARY, LONGEST, PAGE = (3, 9, 17, 30, 41), 64, 128, 112, 4
"""Prompts and answers are several times as long as a window of these models."""


def check(model: torch.nn.Module, prompt: list[int], answer: list[int]) -> None:
    """Each token is the most likely one after all before it; where two are as likely, either may be taken."""
    assert len(answer) == TOKENS
    with torch.no_grad():
        logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1].numpy()
    np.testing.assert_allclose(logits[np.arange(TOKENS), answer], logits.max(axis=-1), atol=1e-4)


ALIKE = (
    "apertus1p5", "arctic", "axk2", "bailing_hybrid", "bamba", "bert", "bitnet", "bloom", "ctrl", "cwm",
    "deepseek_v2-lite", "deepseek_v32", "diffllama", "electra", "falcon-7b", "falcon_h1", "falcon_mamba", "gemma2",
    "gemma4", "gemma4-experts", "glm5_next", "gptj", "hunyuan", "hy_v4", "jetmoe", "kimi_linear", "laguna",
    "lfm2-wide", "longcat_flash", "mamba", "minimax", "ministral3", "mistral4", "mistral_large4",
    "modernbert_decoder", "mpt-clip", "nemotron_h", "olmo3", "opt-norms-behind-narrow", "phi3-short", "phimoe",
    "qwen3_5", "recurrent_gemma", "rembert", "rwkv", "stablelm-norms", "zamba", "zamba2", "zamba2-plain",
)  # fmt: skip
"""Families whose caches and states are of the kinds that others have; their logits are compared in any case."""


def marked(name: str) -> Any:
    """The name, marked exhaustive where it is of `ALIKE`."""
    return pytest.param(name, marks=pytest.mark.exhaustive) if name in ALIKE else name


# transformers keeps the short factors of PhiMoE however long the text is.
@pytest.mark.slow
@pytest.mark.parametrize("name", [marked(name) for name in covering() if name != "phimoe-long"])
def test_greedy_tokens(tmp_path: Path, name: str) -> None:
    family = FAMILIES[name]
    model = family.save(tmp_path, **{"max_position_embeddings": LONGEST, **family.case.options})
    random = np.random.default_rng(2)
    prompts = [random.integers(0, VOCABULARY, length).tolist() for length in LENGTHS]
    plan = CacheLayout("xla", "float32").plan(read_config(tmp_path), by_window=True)
    # What one request holds in a step of 8 tokens: all its tokens, or those that a window shows.
    held = sum(min(LONGEST, window + 8) if window else LONGEST for window in plan.windows) // PAGE
    engine = make_engine(
        model=str(tmp_path),
        dtype="float32",
        max_model_len=LONGEST,
        max_num_seqs=4,
        max_num_batched_tokens=8,
        block_size=PAGE,
        # Too few for all of them at once.
        num_gpu_blocks_override=1 + held * 9 // 4,
    )
    params = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
    try:
        answers = run(engine, [request(index, prompt, **params) for index, prompt in enumerate(prompts)])
        for index, prompt in enumerate(prompts):
            check(model, prompt, answers[str(index)].token_ids)
        # Again, alone and not ahead of the device, with what the first ones left in the prefix cache.
        with synchronous(engine):
            again = run(engine, [request("again", prompts[-1], **params)])["again"]
        assert again.token_ids == answers[str(len(prompts) - 1)].token_ids
        # Of a pool this small, pages that a window has passed may be gone.
        assert again.num_cached_tokens > 0 or any(plan.windows)
        assert engine.scheduler.num_preemptions > 0 or any(plan.windows)
    finally:
        engine.close()
