"""Models in GGUF files give the logits of the same numbers in transformers."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from jaxllm.models.checkpoint.find_model import find_model
from tests.models.quantization.gguf_files import write
from tests.models.test_families import Case, check

WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
SOON = ("gemma3", "qwen3moe")
"""Those of the fast part: norms around zero, experts; types are of Llama, whose rows are in another order."""

MODELS: dict[str, tuple[str, Case, dict[str, Any]]] = {
    "llama": ("llama", Case("Llama"), {}),
    "gemma": ("gemma", Case("Gemma", {"head_dim": 16}), {}),
    "gemma2": (
        "gemma2",
        Case("Gemma2", {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 16}),
        {"gemma2.attention.sliding_window": 5},
    ),
    "gemma3": (
        "gemma3",
        Case(
            "Gemma3Text",
            {
                "head_dim": 16,
                "sliding_window": 5,
                "num_hidden_layers": 6,
                "query_pre_attn_scalar": 16,
                "rope_parameters": {
                    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6},
                },
            },
        ),
        {"gemma3.attention.sliding_window": 5},
    ),
    "mixtral": (
        "llama",
        Case("Mixtral", {"num_local_experts": 8, "num_experts_per_tok": 3}),
        {"llama.expert_count": 8, "llama.expert_used_count": 3},
    ),
    "phi3": ("phi3", Case("Phi3", {"pad_token_id": 0}), {}),
    "qwen2": ("qwen2", Case("Qwen2"), {}),
    "qwen3": ("qwen3", Case("Qwen3", {"head_dim": 32}), {}),
    "qwen3moe": (
        "qwen3moe",
        Case(
            "Qwen3Moe",
            {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "norm_topk_prob": True},
        ),
        {"qwen3moe.expert_count": 8, "qwen3moe.expert_used_count": 3, "qwen3moe.expert_feed_forward_length": 32},
    ),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def quick(names: Iterable[str], soon: Sequence[str]) -> list[Any]:
    """The names, marked slow but for a few."""
    return [name if name in soon else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", quick(MODELS, SOON))
def test_architectures(tmp_path: Path, name: str) -> None:
    architecture, case, more = MODELS[name]
    path, model = write(tmp_path, architecture, case, lambda tensor: "F32", **more)
    check(find_model(str(path)), model)


MIXED = {"ffn_down": "Q6_K", "attn_v": "Q6_K", "token_embd": "Q5_K", "attn_output": "Q8_0"}
"""As in files of llama.cpp's type Q4_K_M, and more."""


@pytest.mark.parametrize("kind", quick(["Q4_K", "Q8_0", "Q4_0", "Q5_1"], ["Q4_K"]))
def test_types(tmp_path: Path, kind: str) -> None:
    def choice(name: str) -> str:
        return MIXED.get(name.split(".")[-2], kind) if kind == "Q4_K" else kind

    path, model = write(tmp_path, "llama", Case("Llama", WIDE), choice)
    # In float64: the oracle's own float32 is off by more than the tolerance now and then.
    # Its logits reach 13, where 1e-5 are the last digits of float32: processors add in different orders.
    check(find_model(str(path)), model.double(), rtol=1e-5)
