"""A model with an adapter in its weights gives the logits of PEFT on transformers, for every family of decoders."""

from pathlib import Path

import numpy as np
import pytest

from jaxllm.models.adapters.merging import merge
from jaxllm.models.adapters.reading import read_adapter
from jaxllm.models.causal_lm import checkpoint_names, load_model
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.options import ForwardOptions
from tests.models.adapters.trained import PROMPTS, save, train
from tests.models.every_family import FAMILIES
from tests.models.paged import compiled_step, run
from tests.models.test_parity import ONE_GO, TOKENS, expected_logits

SOON = ("llama", "phi3", "gpt2", "gpt_neox", "deepseek_v2", "qwen3_next", "qwen2_moe", "gemma3", "falcon-40b")
"""Those of the fast part: projections apart and fused in each way, transposed, latent, recurrent, shared experts."""


SPREAD = {"gemma4-narrow": 0.05, "qwen3_5_moe": 0.05, "qwen3_next": 0.05}
"""Of the adapter's values, where norms make more of the last bits with larger ones than the tolerance."""

NOT_READ: dict[str, str | tuple[str, ...]] = {
    "glm5_next": "model.visual.",
    "mistral_large4": ("model.vision_tower.", "model.multi_modal_projector."),
    "phi4_multimodal": "model.embed_tokens_extend.",
}
"""Where weights are that a family does not read, and adapters' neither."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SOON else pytest.mark.exhaustive) for name in FAMILIES]
)
def test_logits(tmp_path: Path, name: str) -> None:
    model = FAMILIES[name].save(tmp_path)
    base = expected_logits(model, PROMPTS)
    trained = train(model, spread=SPREAD.get(name, 0.1))
    folder = save(trained, tmp_path / "adapter")
    expected = expected_logits(trained, PROMPTS)
    assert min(np.abs(one - other).max() for one, other in zip(base, expected, strict=True)) > 0.1
    config = read_config(tmp_path)
    loaded = load_model(Checkpoint(tmp_path), config, ForwardOptions(max_model_len=64), "float32")
    adapter = read_adapter(folder, loaded, checkpoint_names(config, loaded.options))
    # PEFT has trained the parts for images and sound, too.
    assert [each for each in adapter.skipped if not each.startswith(NOT_READ.get(name, "none"))] == []
    merged = merge(loaded, adapter)
    found = run(merged, PROMPTS, ONE_GO, TOKENS, compiled_step(merged))
    for logits, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(logits[:, : wanted.shape[1]], wanted, atol=1e-4, rtol=0)
