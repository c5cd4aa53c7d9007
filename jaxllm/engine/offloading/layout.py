"""What copies in files depend on, besides the digests of pages: the model's content, and how pages are computed.

Engines with equal layouts may use each other's files. Whatever may change a bit of a page is part of it; how many
requests and tokens run at once is not.
"""

import dataclasses
import hashlib
import json
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.engine.offloading.host_tier import PageMover
from jaxllm.executor.compile.identity import cpu_features, software
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.executor.weights.content import content_digest
from jaxllm.models.checkpoint.checkpoint import Checkpoint

WEIGHTS = "weights.json"
"""The file in which digests of weight files are kept, which take a second for a gigabyte."""


def layout_of(resolved: ResolvedConfig, mover: PageMover, kept: Path | None = None) -> tuple[bytes, str]:
    """The layout's digest (32 bytes), and JSON of what it is made of, for people.

    All weights are read, unless their files are those of a digest in the file `kept`. Raises `OSError`.
    """
    forward = dataclasses.replace(resolved.forward, mesh=None)
    options = resolved.config.model
    known: dict[str, Any] = {
        "format": 1,
        "model": resolved.model.architecture,
        "weights": weights_digest(resolved, kept),
        "model_config": digest_of(dataclasses.asdict(resolved.model)),
        "quantization": options.quantization,
        "dtype": resolved.dtype,
        "kv_cache_dtype": resolved.kv_dtype,
        "block_size": resolved.page_size,
        "page": [str(np.dtype(mover.page.dtype)), *mover.page.shape],
        "state_bytes": mover.state_bytes,
        "windows": list(resolved.cache_groups.windows),
        "tensor_parallel_size": resolved.num_devices,
        "pipeline_parallel_size": resolved.num_stages,
        "forward": digest_of(dataclasses.asdict(forward)),
        "kernels": {operation: choice.name for operation, choice in sorted(resolved.kernels.items())},
        "optimization_level": resolved.config.compile.optimization_level,
        "adapters": None if resolved.adapters is None else digest_of(dataclasses.asdict(resolved.adapters)),
        "device": resolved.device_kind,
        **software(resolved.platform),
    }
    if resolved.platform == "cpu":
        known["machine"] = [platform.machine(), digest_of(cpu_features())]
    text = json.dumps(known, indent=2, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).digest(), text


def weights_digest(resolved: ResolvedConfig, kept: Path | None = None) -> str:
    """A digest of all files that the weights, and the model's configuration, come from. Raises `OSError`."""
    options = resolved.config.model
    if options.load_format == "dummy":
        return f"dummy {options.seed}"
    return content_digest(_files_of(resolved.folder, options.load_format), kept)


def _files_of(folder: Path, load_format: str) -> Iterator[Path]:
    if load_format == "sharded_state":
        yield from sorted(path for path in folder.iterdir() if path.is_file())
        return
    weights = Checkpoint(folder, load_format).files
    yield from weights
    if folder.is_dir():
        yield from sorted(path for path in folder.glob("*.json") if path not in weights)


def digest_of(value: Any) -> str:
    """A digest of JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:32]
