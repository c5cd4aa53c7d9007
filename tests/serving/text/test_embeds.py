"""Embeddings as prompts in a program: which arrays, and what stands beside them."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from jaxllm.engine.validation import RequestLimits
from jaxllm.errors import PromptTooLongError, RequestError
from jaxllm.prompt_embeds import NO_TOKEN
from jaxllm.sampling_params import SamplingParams
from jaxllm.serving.text.input_processor import InputProcessor, TextRequest
from tests.serving.conftest import engine_info

ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)


def prepare(prompt: Any, *, dtype: str = "float32", size: int | None = 4, **params: Any) -> TextRequest:
    limits = RequestLimits.of(engine_info(dtype=dtype, embedding_size=size))
    (made,) = InputProcessor(None, limits).prepare([prompt], SamplingParams(**params), ["r"])
    return made


@pytest.mark.parametrize(
    "given", [ROWS, ROWS[None], ROWS.tolist(), ROWS.astype(np.float64), ROWS.astype(ml_dtypes.bfloat16),
              torch.from_numpy(ROWS).bfloat16().requires_grad_(), torch.from_numpy(ROWS).half()],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_arrays(given: Any, dtype: str) -> None:
    made = prepare({"prompt_embeds": given, "prompt": "as text", "cache_salt": "s"}, dtype=dtype, n=2)
    assert (made.prompt, made.prompt_token_ids, len(made.children)) == ("as text", [0, 0, 0], 2)
    for child in made.children:
        assert child.prompt_embeds is not None
        assert child.prompt_embeds.rows.dtype.name == dtype
        assert np.array_equal(child.prompt_embeds.rows.astype(np.float32), ROWS)
        assert child.prompt_token_ids.tolist() == [NO_TOKEN] * 3
        assert child.cache_salt == "s"


def test_beside_tokens() -> None:
    mixed = {"prompt_embeds": ROWS, "prompt_token_ids": [7, 8, 9], "prompt_is_token_ids": [False, True, False]}
    made = prepare(mixed)
    (child,) = made.children
    assert child.prompt_token_ids.tolist() == [NO_TOKEN, 8, NO_TOKEN]
    assert child.prompt_embeds is not None
    assert np.array_equal(child.prompt_embeds.rows, ROWS[[0, 2]])
    (cut,) = prepare(mixed, truncate_prompt_tokens=2).children
    assert cut.prompt_embeds is not None
    assert (cut.prompt_token_ids.tolist(), cut.prompt_embeds.rows.tolist()) == ([8, NO_TOKEN], ROWS[2:].tolist())
    (none,) = prepare({**mixed, "prompt_is_token_ids": [False, True, True]}, truncate_prompt_tokens=2).children
    assert (none.prompt_token_ids.tolist(), none.prompt_embeds) == ([8, 9], None)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"prompt_embeds": [[1.0], [1.0, 2.0]]}, "expected an array"),
        ({"prompt_embeds": "text"}, "expected an array of shape"),
        ({"prompt_embeds": ROWS.astype(np.int32)}, "not int32"),
        ({"prompt_embeds": ROWS[:, :3]}, "rows have 3 values"),
        ({"prompt_embeds": np.full((3, 4), np.nan)}, "value 0 of row 0 is not finite"),
        ({"prompt_token_ids": [7, 8, 9]}, "prompt_is_token_ids"),
        ({"prompt_token_ids": [7, 8, 9], "prompt_is_token_ids": [True]}, "expected 3 truth values"),
        ({"prompt_token_ids": [7, -2, 9], "prompt_is_token_ids": [True] * 3}, "prompt token 1 is -2"),
        ({"prompt_token_ids": [7, 400, 9], "prompt_is_token_ids": [True] * 3}, "prompt token 1 is 400"),
    ],
)
def test_errors(more: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        prepare({"prompt_embeds": ROWS, **more})


def test_limits() -> None:
    with pytest.raises(PromptTooLongError, match="32 embeddings"):
        prepare({"prompt_embeds": np.zeros((32, 4), np.float32)})
    with pytest.raises(RequestError, match="--enable-prompt-embeds"):
        prepare({"prompt_embeds": ROWS}, size=None)
    with pytest.raises(RequestError, match=r"is not finite in float16"):
        prepare({"prompt_embeds": ROWS * 1e6}, dtype="float16")
