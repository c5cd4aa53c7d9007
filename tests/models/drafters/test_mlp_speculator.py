"""MLP speculators, compared with their published formula on hidden states of transformers."""

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import gelu
from transformers import LlamaForCausalLM

from jaxllm.config import EngineConfig
from jaxllm.engine.features import speculation
from jaxllm.errors import ConfigError
from jaxllm.models.checkpoint.find_model import find_model
from jaxllm.speculation import device_drafts
from tests.conftest import ROOT
from tests.e2e.driving import make_engine, request, run
from tests.e2e.test_speculation import all_of_them
from tests.models.drafters.checkpoints import save_mlp_speculator

PROMPT = list(range(40, 60))


class Reference:
    """arXiv 2404.19124, section 3: a stage joins the state with the last token, and predicts the next one from both."""

    def __init__(self, folder: Path, *, stages: int, is_tied: bool, scales: bool) -> None:
        self.model = LlamaForCausalLM.from_pretrained(find_model("demo"), dtype=torch.float32)
        self.weights = {
            name.removeprefix("speculator."): each for name, each in load_file(folder / "model.safetensors").items()
        }
        self.stages, self.is_tied, self.scales = stages, is_tied, scales

    @staticmethod
    def normed(x: torch.Tensor) -> torch.Tensor:
        """By root mean square."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    @torch.no_grad()
    def drafts(self, tokens: list[int], count: int) -> list[int]:
        """Guesses after these tokens; the hidden states know nothing of the last one."""
        state = self.model.model(torch.tensor([tokens[:-1]])).last_hidden_state[0, -1]
        if self.scales:
            state = self.normed(state) / 2**0.5
        size = self.weights["emb.0.weight"].shape[1]
        state_weight = 0.5 ** (0.5 / self.stages)
        embedding_weight = (1 - state_weight**2) ** 0.5 * (size / 2) ** 0.5
        token, found = tokens[-1], []
        for stage in range(count):
            own = 0 if self.is_tied else stage
            projection = self.weights[f"proj.{min(stage, 1) if self.is_tied else stage}.weight"]
            state = projection @ state * state_weight + self.weights[f"emb.{own}.weight"][token] * embedding_weight
            state = gelu(self.normed(state) * self.weights[f"ln.{own}.weight"] + self.weights[f"ln.{own}.bias"])
            token = int((self.weights[f"head.{own}.weight"] @ state).argmax())
            found.append(token)
        return found


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"stages": 4}, 4),
        ({"stages": 5, "inner": 256, "is_tied": True, "scales": True}, 5),
        pytest.param({"stages": 3, "inner": 0, "scales": True}, 2, marks=pytest.mark.exhaustive),
    ],
    ids=["own", "tied", "fewer"],
)
def test_drafts_of_the_published_formula(
    options: dict[str, Any], count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[int, list[int]] = {}
    take = device_drafts.DeviceDrafts.take

    def keeping(self: Any, table: Any, slots: Any, places: Any, drafts: Any) -> None:
        made.update(zip(places.tolist(), drafts.tolist(), strict=True))
        take(self, table, slots, places, drafts)

    monkeypatch.setattr(device_drafts.DeviceDrafts, "take", keeping)
    monkeypatch.setattr(speculation, "choose_amounts", all_of_them)
    head = save_mlp_speculator(tmp_path, **options)
    engine = make_engine(
        dtype="float32", max_model_len=128, max_num_seqs=4, max_num_batched_tokens=16,
        speculative_config={"model": str(head), "num_speculative_tokens": count},
    )  # fmt: skip
    try:
        said = run(engine, [request("a", PROMPT, temperature=0, max_tokens=20, ignore_eos=True)])["a"].token_ids
    finally:
        engine.close()
    parts = {"is_tied": False, "scales": False, **options}
    reference = Reference(head, **{name: parts[name] for name in ("stages", "is_tied", "scales")})
    text = [*PROMPT, *said]
    assert len(made) > 12
    for place, drafts in made.items():
        if place <= len(text):
            assert drafts == reference.drafts(text[:place], count), place


def test_the_example_with_a_file_that_has_what_stages_share_several_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_mlp_speculator(tmp_path, is_tied=True)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["speculator.emb.1.weight"] = tensors["speculator.emb.0.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    given = EngineConfig.from_options
    quick = {"optimization_level": 0, "enforce_eager": True}
    monkeypatch.setattr(EngineConfig, "from_options", lambda options, *more: given({**quick, **options}, *more))
    monkeypatch.setattr(sys, "argv", ["example", "demo", str(tmp_path)])
    runpy.run_path(str(ROOT / "docs/examples/offline_inference_mlpspeculator.py"), run_name="__main__")
    assert "the same: True" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"emb_dim": 64}, "hidden size 64"),
        ({"vocab_size": 1000}, "1000 tokens"),
        ({"n_predict": 2}, "guesses 2 tokens; give num_speculative_tokens of at most 2 in place of 3"),
        ({"n_predict": "4"}, "'n_predict' must be an integer"),
        ({"inner_dim": -1}, "'inner_dim' must be at least 0"),
        ({"tie_weights": 1}, "'tie_weights' must be true or false"),
        ({"lstm_gates": 4}, "'lstm_gates' = 4 is unknown"),
        ({"architectures": ["ArcticMLPSpeculatorPreTrainedModel"]}, "only MLPSpeculatorPreTrainedModel"),
        ({"n_predict": 5}, r"speculator\.emb\.4\.weight|emb\.4"),
    ],
)
def test_a_drafter_that_does_not_fit(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    head = save_mlp_speculator(tmp_path, **values)
    with pytest.raises(ConfigError, match=message):
        make_engine(speculative_config={"method": "mlp_speculator", "model": str(head)})


def test_a_drafter_of_another_kind() -> None:
    with pytest.raises(ConfigError, match="this is not an MLP speculator"):
        make_engine(speculative_config={"method": "mlp_speculator", "model": str(find_model("demo"))})
