"""Families that see, in two pipeline stages: answers are those of transformers."""

from pathlib import Path
from typing import Any

import pytest

from jaxllm import LLM
from tests.e2e.images.test_families import CASES, GREEDY, Saved


@pytest.mark.parametrize("name", ["qwen2_5_vl", pytest.param("gemma3", marks=pytest.mark.exhaustive)])
def test_the_first_stage_sees(name: str, tmp_path: Path, demo_folder: Path) -> None:
    """All stages rotate tokens by their places in images, and the pool of images is where tokens go in."""
    saved = Saved(CASES[name], tmp_path, demo_folder)
    images, text = saved.images(), f"Look: {saved.case.marker} and tell what it is."
    options: dict[str, Any] = {
        "max_model_len": 256, "max_num_seqs": 2, "max_num_batched_tokens": 8, "optimization_level": 0,
        "enforce_eager": True, **saved.case.engine,
    }  # fmt: skip
    asked: list[Any] = [{"prompt": text, "multi_modal_data": {"image": image}} for image in images]
    with LLM(str(tmp_path), pipeline_parallel_size=2, **options) as llm:
        outputs = llm.generate([*asked, "A text."], GREEDY, use_tqdm=False)
        engine: Any = llm.llm_engine.engine
        first, last = engine.runner.calls.every
        assert first.state.media_pool is not None
        assert last.state.media_pool is None
        assert {each.id for each in first.state.media_pool.devices()} == {0}
    for output, image in zip(outputs, images, strict=False):
        assert (output.prompt_token_ids, output.outputs[0].token_ids) == saved.answer(text, [image])
