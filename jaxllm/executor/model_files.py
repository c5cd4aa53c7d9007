"""The folders of a model and of its tokenizer, as the options name them."""

from pathlib import Path

from jaxllm.config import ModelOptions
from jaxllm.models.checkpoint.find_model import find_model


def model_folder(options: ModelOptions, *, weights: bool = False) -> Path:
    """The folder of the model, downloaded if need be. Raises `ModelError`."""
    where = options.model, options.revision, options.download_dir, options.hf_token
    return find_model(*where, weights=weights, overrides=options.hf_overrides)


def tokenizer_folder(options: ModelOptions, folder: Path | None = None) -> Path:
    """The folder of the tokenizer asked for, or else of the model: `folder`, where it is known. Raises `ModelError`."""
    if options.tokenizer is None and options.tokenizer_revision is None:
        return model_folder(options) if folder is None else folder
    name = options.tokenizer or options.model
    where = name, options.tokenizer_revision, options.download_dir, options.hf_token
    return find_model(*where, weights=False, overrides=options.hf_overrides)
