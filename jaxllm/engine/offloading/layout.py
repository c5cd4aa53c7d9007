"""What copies in files depend on, besides the digests of pages: the model's content, and how pages are computed.

Engines with equal layouts may use each other's files. Whatever may change a bit of a page is part of it; how many
requests and tokens run at once is not.
"""

import dataclasses
import hashlib
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.engine.offloading.host_tier import PageMover
from jaxllm.executor.compile.identity import cpu_features, software
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.checkpoint.checkpoint import Checkpoint

WEIGHTS = "weights.json"
"""The file in which digests of weight files are kept, which take a second for a gigabyte."""
_SAMPLES, _SAMPLE_BYTES = 64, 4096
_MOST_KEPT = 4096


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
    known = _read_kept(kept)
    digest = hashlib.sha256()
    found: dict[str, str] = {}
    for path in _files_of(resolved.folder, options.load_format):
        state = _state_of(path)
        content = known.get(state) or _content(path)
        # Where times are not those of a clock, as in images of file systems, other content may look the same.
        if state:
            found[state] = content
        digest.update(f"{path.name} {content}\n".encode())
    if kept is not None and not found.items() <= known.items():
        _write_kept(kept, known | found)
    return digest.hexdigest()


def _files_of(folder: Path, load_format: str) -> Iterator[Path]:
    if load_format == "sharded_state":
        yield from sorted(path for path in folder.iterdir() if path.is_file())
        return
    weights = Checkpoint(folder, load_format).files
    yield from weights
    if folder.is_dir():
        yield from sorted(path for path in folder.glob("*.json") if path not in weights)


def _content(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _state_of(path: Path) -> str:
    """What changes with a file's content; empty where nothing is sure to."""
    found = path.stat()
    if found.st_ctime_ns % 1_000_000_000 == 0:
        return ""
    # Samples as well: it costs little to be surer.
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for number in range(_SAMPLES):
            file.seek(found.st_size * number // _SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
    times = (found.st_mtime_ns, found.st_ctime_ns)
    return " ".join(map(str, (path.resolve(), found.st_dev, found.st_ino, found.st_size, *times, digest.hexdigest())))


def _read_kept(kept: Path | None) -> dict[str, str]:
    try:
        found = {} if kept is None else json.loads(kept.read_text())
    except (OSError, ValueError):
        return {}
    # Who can write here can have wrong pages found, as who can write the files of pages.
    is_own = kept is not None and kept.stat().st_uid == os.geteuid()
    return found if is_own and isinstance(found, dict) else {}


def _write_kept(kept: Path, known: dict[str, str]) -> None:
    temporary = kept.with_name(f".{kept.name}-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(dict(list(known.items())[-_MOST_KEPT:]), file)
        temporary.rename(kept)
    except OSError:
        # The next start takes a little longer.
        temporary.unlink(missing_ok=True)


def digest_of(value: Any) -> str:
    """A digest of JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:32]
