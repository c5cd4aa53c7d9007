"""An engine whose weights have an adapter in them (`merge_lora`)."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from jaxllm.config.progress import Progress
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.adapters.errors import AdapterError
from jaxllm.models.adapters.load_merged import MergedAdapter
from jaxllm.models.adapters.reading import read_adapter
from jaxllm.models.causal_lm import abstract_model, checkpoint_names
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.leaves import leaf_specs
from jaxllm.models.checkpoint.loading import open_weights

if TYPE_CHECKING:
    from jaxllm.executor.weights.load import LoadWeights
    from jaxllm.models.checkpoint.loading import WeightSource


def merge_while_loading(resolved: ResolvedConfig, read: Callable[..., tuple[jax.Array, ...]]) -> "LoadWeights":
    """Reads weights with `read`, and adds the adapter of `merge_lora` to them. Raises `ModelError`."""
    options = resolved.config.model
    if options.load_format in ("dummy", "sharded_state"):
        raise AdapterError(f"merge_lora needs a checkpoint, and load_format is {options.load_format!r}; omit one")
    source = open_weights(resolved.folder, options.load_format, options.seed)

    def load(resolved: ResolvedConfig, progress: Progress) -> tuple[jax.Array, ...]:
        return read(source, resolved, progress, _read(source, resolved))

    return load


def _read(source: "WeightSource", resolved: ResolvedConfig) -> MergedAdapter:
    """The adapter for a model, or a stage of it."""
    assert isinstance(source, Checkpoint)
    folder = resolved.config.lora.merge_lora
    assert folder is not None
    model = abstract_model(resolved.model, resolved.forward, jnp.dtype(resolved.dtype))
    names = checkpoint_names(resolved.model, resolved.forward)
    try:
        found = MergedAdapter(read_adapter(Path(folder), model, names))
        specs = leaf_specs(model)
        found.check(names.slots(specs), specs, is_tied=resolved.model.tie_word_embeddings)
    except AdapterError as error:
        raise AdapterError(f"merge_lora: {error}") from error
    return found
