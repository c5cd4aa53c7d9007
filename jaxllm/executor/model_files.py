"""The folders of a model and of its tokenizer, as the options name them."""

from pathlib import Path

from jaxllm.config import ModelOptions
from jaxllm.models.checkpoint.find_model import find_model


def model_folder(options: ModelOptions, *, weights: bool = False) -> Path:
    """The folder of the model, downloaded if need be. Raises `ModelError`."""
    return find_model(options.model, options.revision, options.download_dir, options.hf_token, weights=weights)


def tokenizer_folder(options: ModelOptions, folder: Path | None = None) -> Path:
    """The folder of the tokenizer asked for, or else of the model: `folder`, where it is known. Raises `ModelError`."""
    if options.tokenizer is None and options.tokenizer_revision is None:
        return model_folder(options) if folder is None else folder
    name = options.tokenizer or options.model
    return find_model(name, options.tokenizer_revision, options.download_dir, options.hf_token, weights=False)
