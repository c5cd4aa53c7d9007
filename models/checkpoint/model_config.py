"""The configuration of a model, from the files in its folder."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxllm.models.checkpoint.checkpoint import DTYPE_NAMES, Checkpoint
from jaxllm.models.checkpoint.config_file import ConfigFile, quantization_of
from jaxllm.models.checkpoint.other_formats import STATE_FILE, advice_for_other_weights
from jaxllm.models.checkpoint.overrides import overridden
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families import registry
from jaxllm.models.families.naming import architecture_of
from jaxllm.models.towers.pixels import read_pixels, with_most_rows, with_token

IRRELEVANT = (
    "*_pdrop",
    "*_token",
    "*_token_id",
    "*_token_ids",
    "*_token_index",
    "*dropout*",
    "_*",
    "architectures",
    "attn_implementation",
    "auto_map",
    "cache_implementation",
    "chunk_size_feed_forward",
    "classifier_pooling",
    "dtype",
    "finetuning_task",
    "gradient_checkpointing*",
    "id2label",
    "init*",
    "is_composition",
    "is_encoder_decoder",
    "is_matryoshka",
    "is_original_qwen3_reranker",
    "label2id",
    "language",
    "license",
    "matryoshka_dimensions",
    "max_length",
    "max_sequence_length",
    "max_tokenizer_truncation",
    "method",
    "model_type",
    "max_model_len",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_router_logits",
    "position_embedding_type",
    "pretraining_tp",
    "problem_type",
    "return_dict",
    "sbert_ce_*",
    "sentence_transformers",
    "seq_length",
    "tokenizer_class",
    "torch_dtype",
    "transformers_version",
    "unsloth_*",
    "use_bfloat16",
    "use_cache",
    "use_return_dict",
)
"""Options of any architecture that do not change what a model computes here, as patterns."""


def config_file(folder: Path, overrides: Mapping[str, Any] | None = None) -> ConfigFile:
    """The config.json in `folder`, with `overrides` in place of its own values. Raises `ModelError`."""
    file = ConfigFile.read(folder / "config.json")
    return ConfigFile(overridden(file.values, overrides), f"{file.source} (with hf_overrides)") if overrides else file


def read_config(folder: Path, overrides: Mapping[str, Any] | None = None) -> ModelConfig:
    """Configuration of the model in `folder`, from config.json and, for end tokens, generation_config.json.

    `overrides` are values in place of those in config.json.

    Raises `ModelError` for broken JSON, missing keys, impossible values and unknown architectures.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(
            f"{folder}: not a model folder, because it has no config.json{advice_for_other_weights(folder)}"
        )
    file = config_file(folder, overrides)
    architecture = architecture_of(file)
    family = registry.lookup(architecture)
    config = family.read_config(file, architecture)
    section = quantization_of(file)
    if section is not None:
        if family.make_encoder is not None:
            raise ModelError(f"{file.source}: 'quantization_config' is set, but quantized encoders are not supported")
        # Most checkpoints are not quantized: starts are faster without the import.
        from jaxllm.models.quantization.registry import as_quantized

        config = as_quantized(config, family.names_of(config), section)
    if not file.boolean("is_causal", True):
        # Embedders that were made of decoders, such as GTE-Qwen2.
        config = config.bidirectional()
    file.check_all_used(IRRELEVANT)
    if config.tower is not None:
        config = _with_pixels(config, folder)
    changes: dict[str, object] = {"dtype": _dtype(folder, file)}
    if (folder / "generation_config.json").is_file():
        # As in transformers, the generation file has the last word on what ends a text.
        end = ConfigFile.read(folder / "generation_config.json").token_ids("eos_token_id")
        changes["eos_token_ids"] = end or config.eos_token_ids
    return dataclasses.replace(config, **changes)  # type: ignore[arg-type]


def _with_pixels(config: ModelConfig, folder: Path) -> ModelConfig:
    """A model that sees images, with the numbers that these become."""
    tower = config.tower
    assert tower is not None
    tower = dataclasses.replace(tower, pixels=read_pixels(folder, tower.pixels, tower.vision.channels))
    return dataclasses.replace(config, tower=with_most_rows(folder, with_token(folder, tower)))


def _dtype(folder: Path, file: ConfigFile) -> str:
    """The configuration's `dtype` (older: `torch_dtype`), or that of the largest tensor in the first file."""
    if file.has("dtype") or file.has("torch_dtype"):
        key = "dtype" if file.has("dtype") else "torch_dtype"
        name = file.text(key).removeprefix("torch.")
        if name == "float64":
            return "float32"
        if name not in DTYPE_NAMES.values():
            raise file.wrong(key, "one of float32, bfloat16, float16")
        return name
    if (folder / STATE_FILE).is_file():
        return ConfigFile.read(folder / STATE_FILE).text("dtype", "float32")
    # No weights need be here, as with dummy ones; if they are needed, loading says what is wrong.
    return Checkpoint(folder).largest_dtype or "float32"
