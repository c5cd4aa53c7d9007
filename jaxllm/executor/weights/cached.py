"""Weights on disk as the processor's kernels read them, which starts map into memory: they pack and copy nothing.

A saved state (`sharded`) of each engine lies in a folder of the user's cache, named by a digest of all that decides its
bytes. What cannot be cached costs time alone: the engine starts like any other.
"""

import fcntl
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from jaxllm.config.progress import Progress
from jaxllm.errors import RequestError
from jaxllm.executor.compile.identity import cpu_features, software
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.executor.weights.content import content_digest
from jaxllm.executor.weights.sharded.identity import arrangement, engine_options, layers_of, model_digests
from jaxllm.executor.weights.sharded.load import SavedState
from jaxllm.executor.weights.sharded.manifest import is_saved_state
from jaxllm.executor.weights.sharded.save import save_for_mapping
from jaxllm.models.causal_lm import abstract_model
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.leaves import leaf_specs, shown
from jaxllm.models.checkpoint.loading import open_weights
from jaxllm.models.checkpoint.made_folder import cache_home
from jaxllm.models.errors import ModelError
from jaxllm.pallas_kernels.artifact_cache import ArtifactCache, hold

if TYPE_CHECKING:
    from jaxllm.executor.weights.load import LoadWeights

logger = logging.getLogger(__name__)

_FORMAT = "jaxllm mapped weights 1"
_LOCK = "lock"
_WAIT_SECONDS = 600
"""How long a start waits for another process that packs the same weights, before it packs them for itself."""
_IN_USE_SECONDS = 60
"""Folders that are in use are held. This is for those that are about to be."""


class WeightCache:
    """Weights in folders beneath `home`, which take at most `largest` bytes together."""

    def __init__(self, largest: int, home: Path | None = None) -> None:
        self._home, self._largest = home or cache_home("weights"), largest

    def load(self, read: "LoadWeights", resolved: ResolvedConfig, progress: Progress) -> tuple[jax.Array, ...]:
        """The parameters of an engine, or of a stage of it: mapped, if they can be, else what `read` gives.

        The first engine writes what it has read. Others that start meanwhile wait for it. Raises like `read`.
        """
        try:
            self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = self._home / _digest(resolved, self._home.with_suffix(".json"), progress)
        except OSError as error:
            logger.warning("cannot cache weights in %s: %s", self._home, error)
            return read(resolved, progress)
        found = self._mapped(folder, resolved, progress, logging.DEBUG)
        if found is not None:
            return found
        with _locked(folder, progress) as is_locked:
            # Another process may have written them meanwhile.
            found = self._mapped(folder, resolved, progress)
            if found is not None:
                return found
            leaves = read(resolved, progress)
            if is_locked and self._write(folder, resolved, leaves, progress):
                found = self._mapped(folder, resolved, progress)
        return leaves if found is None else found

    def _mapped(
        self, folder: Path, resolved: ResolvedConfig, progress: Progress, level: int = logging.WARNING
    ) -> tuple[jax.Array, ...] | None:
        """What the folder has; None if that is nothing, or broken, which is logged at `level`."""
        if not is_saved_state(folder):
            return None
        try:
            leaves = SavedState(folder, is_mapped=True).load(resolved, progress)
        except ModelError as error:
            logger.log(level, "%s cannot be used and is written again: %s", folder, error)
            return None
        hold(folder)
        with suppress(OSError):
            os.utime(folder)  # When it was used last.
        logger.info("weights are mapped from %s", folder)
        return leaves

    def _write(self, folder: Path, resolved: ResolvedConfig, leaves: tuple[jax.Array, ...], progress: Progress) -> bool:
        """Write weights to the folder, which is locked; whether that was possible."""
        needed = sum(leaf.nbytes for leaf in leaves)
        try:
            _clear(folder)
            hold(folder)
            self._make_room(needed)
            save_for_mapping((resolved, leaves), folder, progress)
        except (OSError, RequestError) as error:
            logger.warning("cannot cache %.1f GiB of weights in %s: %s", needed / 2**30, folder, error)
            with suppress(OSError):
                _clear(folder)
            return False
        return True

    def _make_room(self, needed: int) -> None:
        """Remove what was used longest ago. Raises `OSError` where too much is in use."""
        if needed > self._largest:
            raise OSError(f"weight_cache_size allows {self._largest / 2**30:.1f} GiB")
        rest = ArtifactCache(self._home, self._largest - needed, _IN_USE_SECONDS).prune()
        if rest > self._largest - needed:
            raise OSError(f"{rest / 2**30:.1f} of the {self._largest / 2**30:.1f} GiB of weight_cache_size are in use")
        free = shutil.disk_usage(self._home).free
        if free < needed:
            raise OSError(f"only {free / 2**30:.1f} GiB of the disk are free")


def open_saved(resolved: ResolvedConfig, read: Callable[..., tuple[jax.Array, ...]]) -> "LoadWeights":
    """Opens a saved state, or a checkpoint that `read` reads and whose weights are cached. Raises `ModelError`."""
    options = resolved.config.model
    reason = _why_not_cached(resolved)
    if options.weight_cache_size and reason is not None:
        logger.warning("weight_cache_size has no effect: %s", reason)
    if options.load_format == "sharded_state":
        return SavedState(resolved.folder).load
    load_weights = partial(read, open_weights(resolved.folder, options.load_format, options.seed))
    if reason is not None:
        return load_weights
    return partial(WeightCache(int(options.weight_cache_size * 2**30)).load, load_weights)


def _why_not_cached(resolved: ResolvedConfig) -> str | None:
    """Why weights of an engine are not cached; None if they are."""
    if resolved.platform != "cpu":
        return f"weights are copied to the devices of {resolved.platform} in any case"
    if resolved.config.model.load_format in ("dummy", "sharded_state"):
        return f"load_format is {resolved.config.model.load_format!r}"
    if resolved.mesh is not None and resolved.mesh.is_multi_process:
        return "the engine spans several processes"
    return None


def _digest(resolved: ResolvedConfig, kept: Path, progress: Progress) -> str:
    """A name for the weights of an engine, or of a stage of it, from all that decides their bytes.

    Digests of the checkpoint's files are kept in the file `kept`. Raises `OSError` and `ModelError`.
    """
    load_format, dtype = resolved.config.model.load_format, jnp.dtype(resolved.dtype)
    specs = leaf_specs(abstract_model(resolved.model, resolved.forward, dtype))
    files = list(Checkpoint(resolved.folder, load_format).files)
    if resolved.drafter_folder is not None:
        files += Checkpoint(resolved.drafter_folder).files
    about = {
        "format": _FORMAT,
        "software": software(resolved.platform),
        "cpu": cpu_features(),
        "content": content_digest(files, kept, progress),
        "model": model_digests(resolved.model),
        "engine": engine_options(resolved),
        "layers": layers_of(resolved),
        "arrays": [(shown(path), str(spec.array), arrangement(spec)) for path, spec in specs.items()],
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:32]


@contextmanager
def _locked(folder: Path, progress: Progress) -> Iterator[bool]:
    """Make the folder, and wait until no other process writes to it; False if that cannot be or takes too long."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        logger.warning("cannot cache weights in %s: %s", folder, error)
        yield False
        return
    try:
        yield _lock(descriptor, progress)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, progress: Progress) -> bool:
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                logger.warning("another process has been packing the same weights for %d s", _WAIT_SECONDS)
                return False
            progress("Waiting for another engine to cache the weights", 0, 1)
            time.sleep(0.1)
        except OSError:
            return True  # There are no locks here: whoever is last has written what all others wrote.
        else:
            return True


def _clear(folder: Path) -> None:
    """Remove what is in a folder; who has mapped it keeps what it has. Raises `OSError`."""
    # The manifest first: nothing half removed must look whole.
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.suffix != ".json"):
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != _LOCK:
            entry.unlink(missing_ok=True)
