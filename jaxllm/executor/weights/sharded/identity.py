"""Which engines may read a saved state, and why others may not."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.executor.weights.sharded.manifest import Manifest, SavedStage
from jaxllm.models.checkpoint.leaves import shown
from jaxllm.models.checkpoint.other_formats import STATE_FILE
from jaxllm.models.checkpoint.weight_target import ParameterPath
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.layers.parameter import ParameterSpec
from jaxllm.version import __version__

Specs = Mapping[ParameterPath, ParameterSpec]

_NOT_OF_WEIGHTS = ("bos_token_id", "dtype", "eos_token_ids", "max_position_embeddings")
"""Fields of a model's configuration that no parameter depends on but by its shape or type."""


def model_digests(model: ModelConfig) -> dict[str, str]:
    """A digest of each field of the configuration that parameters may depend on."""
    fields = dataclasses.asdict(model)
    return {name: _digest(value) for name, value in fields.items() if name not in _NOT_OF_WEIGHTS}


def engine_options(resolved: ResolvedConfig) -> dict[str, Any]:
    """What decides how parameters lie on devices, under the names of the options."""
    forward, model = resolved.forward, resolved.model
    scales = None if resolved.kv_cache is None else resolved.kv_cache.scales
    return {
        "platform": resolved.platform,
        "tensor_parallel_size": resolved.num_devices,
        "pipeline_parallel_size": resolved.config.parallel.pipeline_parallel_size,
        "enable_expert_parallel": forward.expert_parallel,
        "quantization": model.weight_method or resolved.config.model.quantization,
        "dtype": resolved.dtype,
        "kv_cache_dtype": f"{resolved.kv_dtype}, with the checkpoint's scales" if scales == "checkpoint" else None,
        "layer_stack": forward.stack,
        "bfloat16_products": "native" if forward.multiplies_pairs else "widened",
        "linear_backend": resolved.backend("linear"),
        "moe_backend": resolved.backend("moe"),
        "attention_backend": forward.attention,
        "data": resolved.data_shards,
    }


def arrangement(spec: ParameterSpec) -> str:
    """A digest of how a parameter is made of the checkpoint's tensors, wherever it lies."""
    return _digest([repr(each) for each in (spec.rows, spec.layout, spec.matrix, spec.name)])


def stage_for(folder: Path, manifest: Manifest, resolved: ResolvedConfig, specs: Specs) -> SavedStage:
    """The arrays of the engine's stage. Raises `ModelError`, which names what differs."""
    if manifest.jaxllm != __version__:
        raise ModelError(
            f"{folder / STATE_FILE}: saved by jaxllm {manifest.jaxllm}, but this is {__version__}, whose parameter "
            "layout may differ; save it again from the checkpoint"
        )
    start, stop = layers_of(resolved)
    found = [stage for stage in manifest.stages if (stage.start, stage.stop) == (start, stop)]
    digests = model_digests(resolved.model)
    fields = [name for name in {**digests, **manifest.model} if digests.get(name) != manifest.model.get(name)]
    wrong = next(_differences(found[0], specs), None) if found else f"no stage has layers {start} to {stop - 1}"
    if wrong is None and not fields:
        return found[0]
    ours = engine_options(resolved)
    options = [name for name in ours if manifest.engine.get(name) != ours[name]]
    if options:
        reasons = [f"{name} was {_shown(manifest.engine.get(name))} but is {_shown(ours[name])}" for name in options]
        advice = "start with the same options, or save the state again with these"
    elif fields:
        reasons = [f"config.json (or hf_overrides) has different values of {', '.join(map(repr, sorted(fields)))}"]
        advice = "use the configuration it was saved with"
    else:
        reasons, advice = [str(wrong)], "save it again from the checkpoint"
    raise ModelError(f"{folder}: the saved state is for another engine: {'; '.join(reasons)}: {advice}")


def layers_of(resolved: ResolvedConfig) -> tuple[int, int]:
    """The first layer of a stage, or of a whole model, and the one after the last."""
    stage = resolved.stage
    return (0, resolved.model.num_layers) if stage is None else (stage.start, stage.stop)


def _differences(stage: SavedStage, specs: Specs) -> Iterator[str]:
    """What is wrong with the arrays, which the engine expects to be as `specs` say."""
    wanted = {shown(path): spec for path, spec in specs.items()}
    for name in (*wanted, *stage.arrays):
        if name not in wanted or name not in stage.arrays:
            yield f"array {name[:200]!r} is {'missing' if name in wanted else 'unknown'}"
    for name, spec in wanted.items():
        saved, dtype = stage.arrays[name], np.dtype(spec.array.dtype).name
        if (saved.dtype, tuple(saved.shape)) != (dtype, spec.array.shape):
            yield f"array {name!r} is {saved.dtype[:40]} {saved.shape}, not {dtype} {list(spec.array.shape)}"
        elif saved.arrangement != arrangement(spec):
            yield f"array {name!r} has a different layout"


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
