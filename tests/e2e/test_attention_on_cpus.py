"""Kinds of attention that kernels for CPUs serve: greedy tokens through the engine are those of transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.driving import make_engine, request, run
from tests.e2e.test_families import TOKENS, VOCABULARY, check
from tests.models.every_family import FAMILIES

LENGTHS, PAGE, LONGEST = (3, 30, 70, 41), 16, 144
# Whole vectors, and more tokens than are seen.
SIZES: dict[str, dict[str, Any]] = {
    "minimax_m3": {"index_head_dim": 16, "index_block_size": 16, "index_topk_blocks": 2},
    "hy_v4": {"kv_lora_rank": 32, "qk_rope_head_dim": 16, "index_head_dim": 16, "index_topk": 20},
    "dots3_note": {
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 16,
        "index_head_dim": 16,
        "index_topk": 20,
        "sliding_window": 21,
        "swa_kv_lora_rank": 48,
        "swa_qk_rope_head_dim": 16,
        "swa_head_dim": 36,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_greedy_tokens(tmp_path: Path, name: str) -> None:
    """In chunks, batched, and with too few pages for all of them at once."""
    family = FAMILIES[name]
    model = family.save(tmp_path, max_position_embeddings=LONGEST, **SIZES[name])
    random = np.random.default_rng(2)
    prompts = [random.integers(0, VOCABULARY, length).tolist() for length in LENGTHS]
    engine = make_engine(
        model=str(tmp_path),
        dtype="float32",
        max_model_len=LONGEST,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        block_size=PAGE,
        num_gpu_blocks_override=1 + 2 * LONGEST // PAGE * 2,
    )
    try:
        assert engine.info.kernels["attention"].name == "cpu"
        params = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
        answers = run(engine, [request(index, prompt, **params) for index, prompt in enumerate(prompts)])
        for index, prompt in enumerate(prompts):
            check(model, prompt, answers[str(index)].token_ids)
    finally:
        engine.close()
