"""The files of the model that sees, as transformers reads them."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer

from scripts.demo_model import tokenizer as demo_tokenizer
from scripts.demo_model.chat import END, SEPARATOR
from scripts.demo_model.export import WEIGHTS, load_tokenizer
from scripts.demo_model.network import EMBEDDING, Params, Shape
from scripts.demo_vision import chat
from scripts.demo_vision.network import PATCHES, POSITIONS, VisionShape, is_of_vision

_TEXT = "model.text_model."


def tokenizer_of(demo: Path) -> Tokenizer:
    """The demo model's, with the tokens of images after its own."""
    found = load_tokenizer(demo)
    found.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in chat.TOKENS])
    found.add_tokens([AddedToken(word, normalized=False) for word in chat.WORDS])
    return found


def with_tokens(params: Params, demo: Tokenizer, seed: int) -> Params:
    """The demo model's weights with the new tokens in the embedding: words begin as the mean of their pieces."""
    table = params[EMBEDDING]
    new = jax.random.normal(jax.random.key(seed), (len(chat.TOKENS), table.shape[1])) * table.std()
    words = [table[jnp.array(demo.encode(word, add_special_tokens=False).ids)].mean(axis=0) for word in chat.WORDS]
    return {**params, EMBEDDING: jnp.concatenate([table, new, jnp.stack(words)])}


def save_files(tokenizer: Tokenizer, shape: Shape, vision: VisionShape, folder: Path) -> None:
    """Write everything but the weights and the card."""
    folder.mkdir(parents=True, exist_ok=True)
    demo_tokenizer.save(tokenizer, folder)
    document = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    for token in document["added_tokens"]:
        token["special"] = token["special"] or token["content"] in chat.TOKENS
    (folder / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(chat.TEMPLATE, encoding="utf-8")
    separator, end = tokenizer.token_to_id(SEPARATOR), tokenizer.token_to_id(END)
    tokens = {"bos_token_id": separator, "eos_token_id": [end, separator], "pad_token_id": separator}
    text = {
        "model_type": "llama", "vocab_size": tokenizer.get_vocab_size(), "hidden_size": shape.hidden,
        "intermediate_size": shape.feed_forward, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "hidden_act": "silu", "rms_norm_eps": shape.norm_eps, "rope_theta": shape.rope_theta,
        "max_position_embeddings": shape.max_positions, "tie_word_embeddings": True, **tokens,
    }  # fmt: skip
    seen = {
        "hidden_size": vision.hidden, "intermediate_size": vision.feed_forward, "num_hidden_layers": vision.layers,
        "num_attention_heads": vision.heads, "image_size": vision.image, "patch_size": vision.patch,
        "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": vision.norm_eps, "model_type": "idefics3_vision",
    }  # fmt: skip
    image = tokenizer.token_to_id(chat.IMAGE)
    _write(folder / "config.json", {
        "architectures": ["Idefics3ForConditionalGeneration"], "model_type": "idefics3", "dtype": "float32",
        "scale_factor": vision.merge, "image_token_id": image, "tie_word_embeddings": True,
        "text_config": text, "vision_config": seen, **tokens,
    })  # fmt: skip
    _write(folder / "generation_config.json", {"do_sample": False, **tokens})
    _write(folder / "preprocessor_config.json", {
        "image_processor_type": "Idefics3ImageProcessor", "processor_class": "Idefics3Processor",
        "do_convert_rgb": True, "do_resize": True, "do_image_splitting": False, "do_rescale": True,
        "do_normalize": True, "do_pad": True, "resample": 1, "rescale_factor": 1 / 255, "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3, "size": {"longest_edge": 4 * vision.image},
        "max_image_size": {"longest_edge": vision.image},
    })  # fmt: skip
    _write(folder / "processor_config.json", {"processor_class": "Idefics3Processor", "image_seq_len": vision.rows})


def save_weights(params: Params, vision: VisionShape, folder: Path, run: dict[str, str]) -> None:
    """Write the weights in bfloat16, in one step, with a note of the run."""
    tensors = {_exported(name): _as_theirs(name, np.asarray(array), vision) for name, array in params.items()}
    half = {name: array.astype(ml_dtypes.bfloat16) for name, array in sorted(tensors.items())}
    unfinished = folder / (WEIGHTS + ".part")
    save_file(half, unfinished, metadata={"format": "pt"} | run)
    unfinished.replace(folder / WEIGHTS)


def load(folder: Path) -> tuple[Params, Shape, VisionShape, Tokenizer, dict[str, str]]:
    """The exported model: weights as float32, sizes, tokenizer, and the note of the run."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    shape, vision = Shape(vocab=config["text_config"]["vocab_size"]), VisionShape()
    params: Params = {}
    with safe_open(folder / WEIGHTS, framework="numpy") as file:
        for exported in file.keys():  # noqa: SIM118 (not a mapping: it has no iterator)
            name = exported.replace(_TEXT, "model.", 1)
            array = file.get_tensor(exported).astype(np.float32)
            if name == f"{PATCHES}.weight":
                array = array.transpose(2, 3, 1, 0).reshape(-1, vision.hidden)
            elif array.ndim == 2 and name not in (EMBEDDING, POSITIONS):
                array = array.T
            params[name] = jnp.asarray(array)
        run = {key: value for key, value in file.metadata().items() if key != "format"}
    return params, shape, vision, load_tokenizer(folder), run


def _exported(name: str) -> str:
    is_text = name.startswith("model.") and not is_of_vision(name)
    return name.replace("model.", _TEXT, 1) if is_text else name


def _as_theirs(name: str, array: np.ndarray, vision: VisionShape) -> np.ndarray:
    """Matrices as (out, in), and the first as a convolution."""
    if name == f"{PATCHES}.weight":
        patch = vision.patch
        return np.ascontiguousarray(array.reshape(patch, patch, 3, -1).transpose(3, 2, 0, 1))
    return np.ascontiguousarray(array.T if array.ndim == 2 and name not in (EMBEDDING, POSITIONS) else array)


def _write(path: Path, document: dict[str, object]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
