"""Qwen2-Audio: rows of sound in place of tokens, and the tokens of transformers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2AudioForConditionalGeneration

from jaxllm import LLM, SamplingParams
from jaxllm.errors import RequestError
from tests.e2e.sound.rows import SOUND, Part, expected, save_model
from tests.e2e.sound.windows import FRAMES, window

PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("rows")
    save_model(found)
    return found


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    return Qwen2AudioForConditionalGeneration.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    made = LLM(
        str(folder), skip_tokenizer_init=True, max_model_len=128, max_num_seqs=3, max_num_batched_tokens=8,
        media_pool_tokens=64, optimization_level=0, strict_compilation=True,
    )  # fmt: skip
    yield made
    made.close()


def prompt_of(parts: list[Part], *, expanded: bool) -> dict[str, Any]:
    """The same as `LLM.generate` takes it, with all tokens of windows or one for each."""
    token_ids: list[int] = []
    for part in parts:
        token_ids += [part] if isinstance(part, int) else [SOUND] * ((part[1] + 1) // 4 if expanded else 1)
    windows = [(window(part[0]), part[1]) for part in parts if not isinstance(part, int)]
    return {"prompt_token_ids": token_ids, "multi_modal_data": {"audio": windows} if windows else None}


PROMPTS: tuple[list[Part], ...] = (
    [1, 5, (0, FRAMES), 7, 8],
    [1, (1, 61), 4, (2, 30), 9, 10],
    [1, 12, 13, 14],
    [1, (0, 61), 7, 8],
    [3, (3, 16), (4, 7)],
)


@pytest.mark.parametrize("expanded", [True, False])
def test_tokens(llm: LLM, reference: Any, *, expanded: bool) -> None:
    answers = llm.generate([prompt_of(parts, expanded=expanded) for parts in PROMPTS], PARAMS)
    for answer, parts in zip(answers, PROMPTS, strict=True):
        assert answer.outputs[0].token_ids == expected(reference, parts), parts


@pytest.mark.parametrize(
    ("parts", "tokens", "problem"),
    [
        ([1, (0, 80)], [1, SOUND, SOUND], "the prompt has 2 sound tokens, but its sound takes 20"),
        ([1, (0, 2)], [1, SOUND], "a window has from 3 to 80"),
        ([1, (0, 80), (1, 80), (2, 80), (3, 80)], [1, *[SOUND] * 4], "the sound takes 80 tokens, but .* at most 64"),
        ([(0, 90)], [SOUND], "from 1 to all are sound, got"),
    ],
)
def test_sound_that_does_not_fit(llm: LLM, parts: list[Part], tokens: list[int], problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        llm.generate([{**prompt_of(parts, expanded=True), "prompt_token_ids": tokens}], PARAMS)
