"""Ultravox as it is published: a projector, and two checkpoints that config.json names. Its model as formulas.

transformers does not have it: Whisper's modules, Llama and the extractor are its own, and what is between them is
written down as in github.com/fixie-ai/ultravox (`ultravox_model.py` and `ultravox_processing.py`, version 0.6).
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import gelu, pad, silu
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

from jaxllm.serving.media.audio.resample import RATE, Samples

MARKER, SPARE = "<|audio|>", "<|reserved_special_token_0|>"
STACK, INNER = 8, 96


def drawn(model: Any, std: float = 0.3) -> Any:
    """The model with weights that differ from those it begins with."""
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=float("norm" in name and "weight" in name), std=std)
    return model.eval()


def save(
    folder: Path, audio: dict[str, Any], text: dict[str, Any], token: int, *, middle: bool = True, own: bool = False
) -> None:
    """Write the projector, and the parts in folders of their own; with `own`, the encoder is in the repository.

    Its norm is in the `middle` from version 0.5 on.
    """
    torch.manual_seed(0)
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    whisper = drawn(
        WhisperForConditionalGeneration(
            WhisperConfig(
                **audio, **tokens, vocab_size=8, decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=8
            )
        )
    )
    llama = drawn(LlamaForCausalLM(LlamaConfig(**text)))
    llama.save_pretrained(folder / "llama")
    wide, size = audio["d_model"] * STACK, text["hidden_size"]
    shapes = {
        "ln_pre": (wide,),
        "linear_1": (INNER, wide),
        "ln_mid" if middle else "ln_post": (INNER // 2 if middle else size,),
        "linear_2": (size, INNER // 2),
    }
    tensors = {f"multi_modal_projector.{name}.weight": 0.2 * torch.randn(shape) for name, shape in shapes.items()}
    config: dict[str, Any] = {
        "architectures": ["UltravoxModel"], "model_type": "ultravox", "text_model_id": str(folder / "llama"),
        "hidden_size": INNER, "stack_factor": STACK, "projector_act": "swiglu", "projector_ln_mid": middle,
        "norm_init": 0.4, "ignore_index": -100, "audio_latency_block_size": None, "audio_token_index": token,
        "text_model_lora_config": {"lora_alpha": 8, "r": 0, "target_modules": ["k_proj"]}, "torch_dtype": "float32",
        "custom_pipelines": {"ultravox-pipeline": {}}, "vocab_size": text["vocab_size"], "initializer_range": 0.02,
    }  # fmt: skip
    if own:
        whole = whisper.model.encoder.state_dict()
        tensors |= {f"audio_tower.{name}": tensor.contiguous() for name, tensor in whole.items()}
        config["audio_config"] = whisper.config.to_dict()
    else:
        config["audio_model_id"] = str(folder / "whisper")
        whisper.save_pretrained(folder / "whisper")
        WhisperFeatureExtractor.from_pretrained(folder).save_pretrained(folder / "whisper")
        (folder / "preprocessor_config.json").unlink()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))


class Ultravox:
    """The model, of one prompt at a time."""

    def __init__(self, folder: Path) -> None:
        self.llama: Any = LlamaForCausalLM.from_pretrained(folder / "llama").eval()
        self.whisper = WhisperForConditionalGeneration.from_pretrained(folder / "whisper").eval().model.encoder
        self.own = load_file(folder / "model.safetensors")
        self.token = json.loads((folder / "config.json").read_text())["audio_token_index"]

    @classmethod
    def from_pretrained(cls, folder: Path) -> "Ultravox":
        """The model in a folder."""
        return cls(folder)

    def eval(self) -> "Ultravox":
        """Itself: nothing is trained."""
        return self

    def rows(self, features: torch.Tensor) -> torch.Tensor:
        """Rows of the features [bins, frames] of a window, which end with the sound."""
        encoder = self.whisper
        x = gelu(encoder.conv2(gelu(encoder.conv1(features[None])))).transpose(1, 2)
        x = x + encoder.embed_positions.weight[: x.shape[1]]
        for layer in encoder.layers:
            x = layer(x, None)
            x = x[0] if isinstance(x, tuple) else x
        x = encoder.layer_norm(x)[0]
        x = pad(x, (0, 0, 0, -len(x) % STACK)).reshape(-(-len(x) // STACK), -1)
        up, gate = (self._norm(x, "ln_pre") @ self._own("linear_1").T).chunk(2, dim=-1)
        x = silu(gate) * up
        if "multi_modal_projector.ln_mid.weight" in self.own:
            return self._norm(x, "ln_mid") @ self._own("linear_2").T
        return self._norm(x @ self._own("linear_2").T, "ln_post")

    def generate(self, input_ids: Any, windows: Sequence[torch.Tensor] = (), **options: Any) -> Any:
        """The prompt with likeliest tokens after it; rows of `windows` stand where there is the marker."""
        is_marker = input_ids[0] == self.token
        embedded = self.llama.get_input_embeddings()(input_ids.masked_fill(is_marker, 0))
        if windows:
            embedded[0, is_marker] = torch.cat([self.rows(window) for window in windows])
        found = self.llama.generate(inputs_embeds=embedded, **options)
        return torch.cat([input_ids, found], dim=1)

    def _own(self, name: str) -> torch.Tensor:
        return self.own[f"multi_modal_projector.{name}.weight"]

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return self._own(name) * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def inputs(extract: Any, sounds: Sequence[Samples]) -> tuple[dict[str, Any], list[int]]:
    """Windows of the sounds' features, and how many tokens each has: its processor cuts features, not samples."""
    hop, most, windows, counts = extract.hop_length, extract.nb_max_frames, [], []
    for sound in sounds:
        made = extract(
            sound, sampling_rate=RATE, padding="longest", pad_to_multiple_of=hop, truncation=False,
            return_attention_mask=True, return_tensors="pt",
        )  # fmt: skip
        count = int(made["attention_mask"].sum())
        cut = [made["input_features"][0, :, first : min(first + most, count)] for first in range(0, count, most)]
        windows += cut
        counts.append(sum(-(-each.shape[1] // (2 * STACK)) for each in cut))
    return {"windows": windows}, counts
