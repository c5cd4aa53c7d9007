"""EAGLE-3 heads, compared with one that is put together from transformers' layers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

from jaxllm.engine.features import speculation
from jaxllm.errors import ConfigError
from jaxllm.models.checkpoint.find_model import find_model
from jaxllm.speculation import device_drafts
from tests.e2e.driving import make_engine, request, run
from tests.e2e.test_speculation import all_of_them
from tests.models.drafters.checkpoints import save_eagle3

PROMPT = list(range(40, 60))
K = 3


class Reference:
    """The head's answer after each prefix of a text, by computing all of it again."""

    def __init__(self, folder: Path, *, nested: bool) -> None:
        self.model = LlamaForCausalLM.from_pretrained(find_model("demo"), dtype=torch.float32)
        values = json.loads((folder / "config.json").read_text())
        llama = values["transformer_layer_config"] if nested else values
        keys = (
            "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
            "rms_norm_eps", "vocab_size", "max_position_embeddings",
        )  # fmt: skip
        config = LlamaConfig(**{key: llama[key] for key in keys}, rope_theta=10000.0, num_hidden_layers=1)
        config._attn_implementation = "eager"
        self.weights = {name: each.float() for name, each in load_file(folder / "model.safetensors").items()}
        self.taps, self.norms_residual = [1, 2, 3], nested
        prefix = "layers.0." if nested else "midlayer."
        own = {name.removeprefix(prefix): each for name, each in self.weights.items() if name.startswith(prefix)}
        self.layer = LlamaDecoderLayer(config, 0).float()
        for name in ("q_proj", "k_proj", "v_proj"):
            shape = own[f"self_attn.{name}.weight"].shape
            setattr(self.layer.self_attn, name, torch.nn.Linear(shape[1], shape[0], bias=False))
        self.hidden_norm, self.norm = (LlamaRMSNorm(config.hidden_size, 1e-5) for _ in range(2))
        self.hidden_norm.weight.data = own.pop("hidden_norm.weight")
        self.norm.weight.data = self.weights["norm.weight"]
        self.layer.load_state_dict(own)
        self.rotary = LlamaRotaryEmbedding(config)

    @torch.no_grad()
    def drafts(self, tokens: list[int]) -> list[int]:
        """K guesses after these tokens."""
        ids = torch.tensor([tokens])
        between = self.model(ids[:, :-1], output_hidden_states=True).hidden_states
        hidden = torch.cat([between[tap] for tap in self.taps], -1) @ self.weights["fc.weight"].T
        after, found = ids[:, 1:], []
        for _ in range(K):
            out = self._layer(self.model.get_input_embeddings()(after), hidden)
            own = int((self.norm(out[:, -1]) @ self.weights["lm_head.weight"].T).argmax())
            found.append(own + (int(self.weights["d2t"][own]) if "d2t" in self.weights else 0))
            hidden = torch.cat([hidden, out[:, -1:]], 1)
            after = torch.cat([after, torch.tensor([[found[-1]]])], 1)
        return found

    def _layer(self, embedded: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        length = hidden.shape[1]
        normed = self.hidden_norm(hidden)
        x = torch.cat([self.layer.input_layernorm(embedded), normed], -1)
        mask = torch.full((length, length), -torch.inf).triu(1)[None, None]
        places = self.rotary(hidden, torch.arange(length)[None])
        mixed, _ = self.layer.self_attn(hidden_states=x, attention_mask=mask, position_embeddings=places)
        after = mixed + (normed if self.norms_residual else hidden)
        out: torch.Tensor = after + self.layer.mlp(self.layer.post_attention_layernorm(after))
        return out


@pytest.mark.parametrize("nested", [False, True], ids=["authors", "speculators"])
def test_drafts_of_a_head_of_transformers_layers(nested: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[int, list[int]] = {}
    take = device_drafts.DeviceDrafts.take

    def keeping(self: Any, table: Any, slots: Any, places: Any, drafts: Any) -> None:
        made.update(zip(places.tolist(), drafts.tolist(), strict=True))
        take(self, table, slots, places, drafts)

    monkeypatch.setattr(device_drafts.DeviceDrafts, "take", keeping)
    monkeypatch.setattr(speculation, "choose_amounts", all_of_them)
    head = save_eagle3(tmp_path, nested=nested)
    engine = make_engine(
        dtype="float32", max_model_len=128, max_num_seqs=4, max_num_batched_tokens=16,
        speculative_config={"model": str(head), "num_speculative_tokens": K},
    )  # fmt: skip
    try:
        said = run(engine, [request("a", PROMPT, temperature=0, max_tokens=20, ignore_eos=True)])["a"].token_ids
    finally:
        engine.close()
    reference = Reference(head, nested=nested)
    text = [*PROMPT, *said]
    assert len(made) > 12
    # A guess that was accepted gives true hidden states in place of the head's own, as in the reference.
    assert made == {place: reference.drafts(text[:place]) for place in made}


def _changed(folder: Path, **values: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    return folder


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_size": 64}, "hidden size 64"),
        ({"vocab_size": 1000}, "1000 tokens"),
        ({"num_hidden_layers": 2}, "EAGLE-3 with 2 layers is not supported"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 9]}}, r"reads layers \[1, 2, 9\]"),
        ({"draft_vocab_size": "many"}, "'draft_vocab_size' must be an integer"),
        ({"eagle_aux_hidden_state_layer_ids": 3}, "a list of integers"),
        ({"eagle_config": [1, 2]}, "eagle_config"),
        ({"draft_vocab_size": 401}, "'d2t' is .400. of I64; it must be 401 integers"),
    ],
)
def test_a_head_of_another_model(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    head = _changed(save_eagle3(tmp_path), **values)
    with pytest.raises(ConfigError, match=message):
        make_engine(speculative_config={"method": "eagle3", "model": str(head)})


def test_tensors_that_are_wrong(tmp_path: Path) -> None:
    path = save_eagle3(tmp_path) / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "d2t": tensors["d2t"] + 2000}, path)
    with pytest.raises(ConfigError, match="'d2t' leads to token"):
        make_engine(speculative_config={"method": "eagle3", "model": str(tmp_path)})
    del tensors["fc.weight"]
    save_file(tensors, path)
    with pytest.raises(ConfigError, match="fc"):
        make_engine(speculative_config={"method": "eagle3", "model": str(tmp_path)})


def test_a_drafter_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="this is not an EAGLE-3 drafter"):
        make_engine(speculative_config={"method": "eagle3", "model": str(find_model("demo"))})
    config = LlamaConfig(
        vocab_size=99, hidden_size=32, intermediate_size=48, num_attention_heads=2, num_hidden_layers=1
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="has 99 tokens and the model 1536"):
        make_engine(speculative_config={"model": str(tmp_path)})
    with pytest.raises(ConfigError, match="no such folder"):
        make_engine(speculative_config={"model": "/nowhere"})
