"""An option of a configuration changes logits as in transformers, or is refused by an error that names it."""

import json
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from jaxllm.models.causal_lm import load_model
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.options import ForwardOptions
from tests.models.every_family import FAMILIES, Family
from tests.models.options import Change, changed, changes
from tests.models.paged import Step, compiled_step, run
from tests.thinned import EVERY_CASE

LENGTH = 37
"""Of the prompt: several windows."""

OPTIONS = ForwardOptions(stack="scan", max_model_len=LENGTH, attention="reference")
"""The reference compiles in half the time."""

Steps = dict[ModelConfig, Step]
"""Programs by what they compute: many options change nothing there, and then nothing is compiled."""

DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
FOUND: list[tuple[str, Change, str]] = [
    ("dbrx", (("attn_config", "kv_n_heads"), 4), "refused"),
    ("deepseek_v2", (("n_routed_experts",), 4), "refused"),
    ("gemma3", (("attn_logit_softcapping",), 0.5), "refused"),
    ("gemma3", (("rope_parameters", "full_attention"), DYNAMIC), "equal"),
    ("llama", (("hidden_act",), "quick_gelu"), "equal"),
    (
        "llama",
        (("rope_parameters",), {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}),
        "refused",
    ),
    ("llama4", (("rope_parameters", "low_freq_factor"), 2.0), "refused"),
    ("mamba2", (("hidden_act",), "quick_gelu"), "equal"),
    ("nemotron_h", (("mlp_hidden_act",), "tanh"), "refused"),
    ("nemotron_h", (("num_experts_per_tok",), 6), "refused"),
    ("qwen2_moe", (("hidden_act",), "relu"), "equal"),
    ("smollm3-windows", (("use_sliding_window",), False), "equal"),
    ("zamba2-plain", (("num_attention_heads",), 8), "refused"),
    ("zamba2-plain", (("tie_word_embeddings",), False), "refused"),
]
"""Changes that once gave other logits, or an error that did not name the option."""


def logits_of_transformers(folder: Path, family: Family, change: Change, prompt: list[int]) -> np.ndarray | None:
    """Logits [T, V] with the change, or None where transformers cannot compute them."""
    config = family.save(folder).config
    try:
        model = family.save(folder, **changed(config, change))
        with torch.no_grad():
            logits: np.ndarray = model(torch.tensor([prompt])).logits[0].numpy()
    except Exception:  # noqa: BLE001 - whatever it says to a value that it cannot have
        return None
    return logits if np.isfinite(logits).all() else None


def names(error: ModelError, change: Change, folder: Path) -> bool:
    """Whether an error names the option or what is in it; or a list that does not fit the number of layers."""
    there = json.loads((folder / "config.json").read_text())
    lists = [name for name, value in there.items() if isinstance(value, list)]
    path, value = change
    named = [*path, *(value if isinstance(value, dict) else ()), *(lists if path[-1] == "num_hidden_layers" else ())]
    return any(f"'{name}'" in str(error) for name in named)


def check(folder: Path, family: Family, change: Change, steps: Steps) -> str:
    """Compare; what came of it in a word."""
    # Tokens of the smallest vocabulary.
    prompt = np.random.default_rng(1).integers(0, 64, LENGTH).tolist()
    wanted = logits_of_transformers(folder, family, change, prompt)
    if wanted is None:
        return "impossible"
    try:
        config = read_config(folder)
    except ModelError as error:
        if not names(error, change, folder):
            raise AssertionError(f"an error that does not name the option: {error}") from None
        return "refused"
    model = load_model(Checkpoint(folder), config, OPTIONS, "float32")
    state, step = compiled_step(model)
    step = steps.setdefault(config, step)
    (found,) = run(model, [prompt], [(LENGTH,)], LENGTH, (state, step))
    np.testing.assert_allclose(found[:, : wanted.shape[1]], wanted, atol=1e-4, rtol=0)
    return "equal"


@cache
def changes_of(name: str) -> tuple[Change, ...]:
    """The options of a family that may be changed."""
    with tempfile.TemporaryDirectory() as folder:
        return tuple(changes(FAMILIES[name].save(Path(folder)).config))


@st.composite
def changed_families(draw: st.DrawFn) -> tuple[str, Change]:
    """A family and a change of one of its options."""
    name = draw(st.sampled_from(sorted(FAMILIES)))
    return name, draw(st.sampled_from(changes_of(name)))


@pytest.mark.slow
@settings(
    max_examples=30 if EVERY_CASE else 8,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)
@given(changed_families())
def test_an_option_is_followed_or_refused(case: tuple[str, Change]) -> None:
    name, change = case
    with tempfile.TemporaryDirectory() as folder:
        check(Path(folder), FAMILIES[name], change, {})


@pytest.mark.parametrize(("name", "change", "outcome"), FOUND)
def test_what_was_found(tmp_path: Path, name: str, change: Change, outcome: str) -> None:
    assert check(tmp_path, FAMILIES[name], change, {}) == outcome
