"""The trained weights as a Hugging Face model folder, and back."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from scripts.demo_model import tokenizer as tokenizers
from scripts.demo_model.chat import END, SEPARATOR
from scripts.demo_model.network import Params, Shape
from scripts.demo_model.training import Run

WEIGHTS = "model.safetensors"


def save_tokenizer(tokenizer: Tokenizer, shape: Shape, folder: Path) -> None:
    """Writes everything but the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizers.save(tokenizer, folder)
    separator, end = tokenizer.token_to_id(SEPARATOR), tokenizer.token_to_id(END)
    tokens: dict[str, object] = {"bos_token_id": separator, "eos_token_id": [end, separator], "pad_token_id": separator}
    config: dict[str, object] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "max_position_embeddings": shape.max_positions,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
        "dtype": "float32",
        **tokens,
    }
    _write(folder / "config.json", config)
    _write(folder / "generation_config.json", {"do_sample": False, **tokens})


def save_weights(params: Params, folder: Path, run: dict[str, str]) -> None:
    """Writes the weights in bfloat16 as (out, in) matrices, with a note of the run in the file's metadata.

    The new file replaces the old one in one step, so a reader never meets half of it.
    """
    tensors = {
        name: np.ascontiguousarray(np.asarray(array).T if array.ndim == 2 and "embed" not in name else array)
        for name, array in params.items()
    }
    half = {name: array.astype(ml_dtypes.bfloat16) for name, array in sorted(tensors.items())}
    unfinished = folder / (WEIGHTS + ".part")
    save_file(half, unfinished, metadata={"format": "pt"} | run)
    unfinished.replace(folder / WEIGHTS)


def save_run(run: Run, path: Path) -> None:
    """Writes all that is needed to go on with a run."""
    unfinished = path.with_suffix(".part.npz")
    np.savez(unfinished, *map(np.asarray, jax.tree.leaves(run)))
    unfinished.replace(path)


def load_run(fresh: Run, path: Path) -> Run:
    """The saved run, if there is one, else the fresh one."""
    if not path.exists():
        return fresh
    with np.load(path) as saved:
        leaves = [jnp.asarray(saved[name]) for name in saved.files]
    run: Run = jax.tree.unflatten(jax.tree.structure(fresh), leaves)
    return run._replace(step=int(run.step))


def load(folder: Path) -> tuple[Params, Shape, Tokenizer, dict[str, str]]:
    """The exported model: weights as float32, architecture, tokenizer and the note of the run."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    shape = Shape(
        vocab=config["vocab_size"],
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        feed_forward=config["intermediate_size"],
        rope_theta=config["rope_theta"],
        norm_eps=config["rms_norm_eps"],
        max_positions=config["max_position_embeddings"],
    )
    params: Params = {}
    with safe_open(folder / WEIGHTS, framework="numpy") as file:
        for name in file.keys():  # noqa: SIM118 (not a mapping: it has no iterator)
            array = file.get_tensor(name).astype(np.float32)
            params[name] = jnp.asarray(array.T if array.ndim == 2 and "embed" not in name else array)
        run = {key: value for key, value in file.metadata().items() if key != "format"}
    return params, shape, load_tokenizer(folder), run


def load_tokenizer(folder: Path) -> Tokenizer:
    """The exported tokenizer."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def _write(path: Path, document: dict[str, object]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
