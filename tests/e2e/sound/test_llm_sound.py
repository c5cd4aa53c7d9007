"""Sound in `LLM.generate`, as log-mel features."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxllm import LLM, SamplingParams
from jaxllm.errors import CapacityError, ConfigError, RequestError
from tests.e2e.sound.hearing import expected, reference_in, save_small_model
from tests.e2e.sound.windows import window

PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("hearing")
    save_small_model(found)
    return found


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    made = LLM(
        str(folder), skip_tokenizer_init=True, max_model_len=64, max_num_seqs=2, max_num_batched_tokens=8,
        optimization_level=0, enforce_eager=True,
    )  # fmt: skip
    yield made
    made.close()


def about(features: Any, *token_ids: int) -> dict[str, Any]:
    """A prompt about sound."""
    return {"prompt_token_ids": list(token_ids), "multi_modal_data": {"audio": features}}


def test_generate(llm: LLM, folder: Path) -> None:
    reference = reference_in(folder)
    answers = llm.generate([about(window(seed), 1, 5) for seed in range(3)], PARAMS)
    for seed, answer in enumerate(answers):
        assert answer.outputs[0].token_ids == expected(reference, window(seed), [1, 5], 8)


@pytest.mark.parametrize(
    ("prompt", "problem"),
    [
        ({"prompt_token_ids": [1]}, "this model needs sound: give multi_modal_data"),
        (about(window(0)[:3], 1), r"expected log-mel features float32 \[16 x 80\], got float32 \[3 x 80\]"),
        (about(window(0).tolist(), 1), "a NumPy array"),
        (about(window(0)[0], 1), "a NumPy array"),
        (about(np.full_like(window(0), np.nan), 1), "must be finite"),
        ({**about(window(0), 1), "multi_modal_data": {"audio": window(0), "image": []}}, "combined with image"),
        (
            {**about(None, 1), "multi_modal_data": {"image": np.zeros((8, 8, 3), np.uint8)}},
            "text only|sound only",
        ),
    ],
)
def test_what_is_no_window_of_sound(llm: LLM, prompt: dict[str, Any], problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        llm.generate([prompt], PARAMS)


def test_models_without_ears() -> None:
    llm = LLM("demo", max_model_len=64, max_num_seqs=1, optimization_level=0, enforce_eager=True)
    with pytest.raises(RequestError, match="this model takes no sound"):
        llm.generate([about(window(0), 1)], PARAMS)
    llm.close()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"runner": "pooling"}, "does not pool"),
        ({"pipeline_parallel_size": 2}, "not supported by Whisper"),
        ({"language_model_only": True}, "writes nothing without sound"),
        ({"kv_cache_memory_bytes": 100_000}, "raise kv_cache_memory_bytes to 196608 or more"),
        ({"kv_cache_memory_bytes": 400_000, "sound_windows": 50}, "sound_windows=50: windows of sound take 3.5 MiB"),
    ],
)
def test_engines_that_it_does_not_have(folder: Path, options: dict[str, Any], problem: str) -> None:
    with pytest.raises((ConfigError, CapacityError), match=problem):
        LLM(str(folder), skip_tokenizer_init=True, max_model_len=64, max_num_seqs=2, **options)
