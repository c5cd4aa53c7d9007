"""The trained model that ships with jaxllm, on the real engine and in transformers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxllm import LLM

SMALL: dict[str, Any] = {
    "optimization_level": 0,
    "max_model_len": 256,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "num_gpu_blocks_override": 200,
}
"""Options that start fast and still need several chunks for a long prompt."""


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    """One engine for all tests, which it must survive; a compilation after its start is an error."""
    with LLM("demo", **SMALL, strict_compilation=True) as made:
        yield made


@pytest.fixture(scope="session")
def reference(demo_folder: Path) -> Any:
    """The same model in transformers, float32."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(demo_folder, dtype=torch.float32).eval()
