"""Engines and prompts that the end-to-end tests share: compiling one takes a while."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from jaxllm.engine.engine import Engine
from jaxllm.executor import resolved
from scripts.demo_model import held_out
from tests.e2e.driving import make_engine
from tests.thinned import EVERY_CASE


@pytest.fixture(scope="module", autouse=True)
def few_sizes() -> Iterator[None]:
    """Engines of this process have steps of 1, 8 and 128 tokens and the largest, where XLA multiplies matrices.

    Sizes between them are the same programs, and most of the time of an engine of a small model goes into compiling.
    `scripts/test --all` has those that users have.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not EVERY_CASE:
            patch.setattr(resolved, "GROWTH", 16)
        yield


@pytest.fixture(scope="module", autouse=True)
def copies_at_full_speed() -> Iterator[None]:
    """Tests count what copies of pages bring, which would depend on how busy the machine is if copies rested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxllm.engine.offloading.pace.SHARE", 1e6)
        yield


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """The demo model with the default options but for room for 64 requests at once."""
    engine = make_engine(max_num_seqs=64, enforce_eager=False)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def tokenizer(demo_folder: Path) -> Any:
    """Hugging Face's tokenizer of the demo model."""
    return AutoTokenizer.from_pretrained(demo_folder)


@pytest.fixture(scope="session")
def prompts(tokenizer: Any) -> list[list[int]]:
    """200 prompts of mixed length as token ids: questions, and beginnings of texts."""
    texts = []
    for item in held_out.prompts(seed=1, count=200):
        if item.chat:
            text = tokenizer.apply_chat_template(
                item.messages, tools=item.tools or None, add_generation_prompt=True, tokenize=False
            )
        else:
            text = item.prompt
        texts.append(text)
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    # Every seventh follows another, and every tenth is cut short: 1 to some hundred tokens.
    for index in range(0, 200, 7):
        ids[index] = ids[index - 1] + ids[index]
    for index in range(0, 200, 10):
        ids[index] = ids[index][: 1 + index // 5]
    return ids
