"""The files of the model that hears, as transformers reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from jaxllm.serving.media.audio.mel import MelFeatures
from scripts.demo_model.export import WEIGHTS, load_tokenizer
from scripts.demo_model.network import Params
from scripts.demo_sound.network import TABLES, Shape, sinusoids
from scripts.demo_sound.tokens import BEFORE, END, NO_SPEECH, NO_TIMES, SECONDS, START, id_of

_ENCODER_POSITIONS: Final = "model.encoder.embed_positions.weight"
_MOST_INITIAL: Final = 50
"""The latest beginning of a window's first phrase, in steps of 20 ms: as of published models."""


def shape_of(tokenizer: Tokenizer) -> Shape:
    """The sizes of a model with these tokens."""
    return Shape(vocab=tokenizer.get_vocab_size(), first_time=id_of(tokenizer, NO_TIMES) + 1)


def save_files(tokenizer: Tokenizer, shape: Shape, folder: Path) -> None:
    """Write everything but the weights and the card."""
    folder.mkdir(parents=True, exist_ok=True)
    document = json.loads(tokenizer.to_str())
    (folder / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    _write(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END, "eos_token": END, "pad_token": END,
        "clean_up_tokenization_spaces": False, "model_max_length": shape.length,
    })  # fmt: skip
    end, start = id_of(tokenizer, END), id_of(tokenizer, START)
    tokens = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": start}
    sizes = {
        f"{side}_{name}": number
        for side in ("encoder", "decoder")
        for name, number in (
            ("layers", shape.layers),
            ("attention_heads", shape.heads),
            ("ffn_dim", shape.feed_forward),
        )
    }
    _write(folder / "config.json", {
        "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "dtype": "float32",
        "vocab_size": shape.vocab, "num_mel_bins": shape.bins, "d_model": shape.hidden, **sizes,
        "max_source_positions": shape.positions, "max_target_positions": shape.length,
        "activation_function": "gelu", "scale_embedding": False, "tie_word_embeddings": True, **tokens,
    })  # fmt: skip
    features = MelFeatures(num_bins=shape.bins, seconds=SECONDS)
    _write(folder / "preprocessor_config.json", {
        "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": features.num_bins,
        "hop_length": features.hop, "n_fft": features.num_fft, "chunk_length": features.seconds,
        "sampling_rate": 16000, "padding_value": 0.0, "return_attention_mask": False,
        "n_samples": features.num_samples, "nb_max_frames": features.num_frames,
    })  # fmt: skip
    _write(folder / "generation_config.json", {
        "suppress_tokens": [id_of(tokenizer, each) for each in (START, BEFORE, NO_SPEECH)],
        "max_initial_timestamp_index": _MOST_INITIAL, "no_timestamps_token_id": id_of(tokenizer, NO_TIMES),
        "prev_sot_token_id": id_of(tokenizer, BEFORE), "is_multilingual": False, "return_timestamps": True,
        "max_length": shape.length, **tokens,
    })  # fmt: skip


def save_weights(params: Params, shape: Shape, folder: Path, run: dict[str, str]) -> None:
    """Write the weights in bfloat16, in one step, with a note of the run."""
    whole = {**params, _ENCODER_POSITIONS: sinusoids(shape.positions, shape.hidden)}
    tensors = {name: _as_theirs(name, np.asarray(array)) for name, array in sorted(whole.items())}
    unfinished = folder / (WEIGHTS + ".part")
    half = {name: array.astype(ml_dtypes.bfloat16) for name, array in tensors.items()}
    save_file(half, unfinished, metadata={"format": "pt"} | run)
    unfinished.replace(folder / WEIGHTS)


def load(folder: Path) -> tuple[Params, Shape, Tokenizer, dict[str, str]]:
    """The exported model: weights as float32, sizes, tokenizer, and the note of the run."""
    tokenizer = load_tokenizer(folder)
    params: Params = {}
    with safe_open(folder / WEIGHTS, framework="numpy") as file:
        for name in sorted(file.keys()):
            if name != _ENCODER_POSITIONS:
                params[name] = jnp.asarray(_as_ours(name, file.get_tensor(name).astype(np.float32)))
        run = {key: value for key, value in file.metadata().items() if key != "format"}
    return params, shape_of(tokenizer), tokenizer, run


def _is_table(name: str) -> bool:
    return name in (*TABLES, _ENCODER_POSITIONS)


def _as_theirs(name: str, array: np.ndarray) -> np.ndarray:
    """Matrices as (out, in), and convolutions as (out, in, frames)."""
    if array.ndim != 2 or _is_table(name):
        return array
    if ".conv" in name:
        return np.ascontiguousarray(array.reshape(3, -1, array.shape[1]).transpose(2, 1, 0))
    return np.ascontiguousarray(array.T)


def _as_ours(name: str, array: np.ndarray) -> np.ndarray:
    if ".conv" in name and array.ndim == 3:
        return np.ascontiguousarray(array.transpose(2, 1, 0).reshape(-1, array.shape[0]))
    return array if array.ndim != 2 or _is_table(name) else np.ascontiguousarray(array.T)


def _write(path: Path, document: dict[str, object]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
