"""Writing a saved state: into a folder alongside it first, so that what is interrupted never looks whole."""

import fcntl
import os
import secrets
import shutil
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from jaxllm.config.progress import Progress, silent
from jaxllm.errors import RequestError
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.executor.weights.sharded.identity import Specs, arrangement, engine_options, layers_of, model_digests
from jaxllm.executor.weights.sharded.manifest import (
    CHUNK_BYTES,
    FORMAT,
    VERSION,
    Manifest,
    SavedArray,
    SavedPart,
    SavedStage,
    read_manifest,
)
from jaxllm.executor.weights.sharded.plan import PlannedFile, PlannedPart, plan_files
from jaxllm.models.causal_lm import abstract_model
from jaxllm.models.checkpoint.hub import SMALL_FILES
from jaxllm.models.checkpoint.leaves import leaf_specs, shown
from jaxllm.models.checkpoint.other_formats import STATE_FILE
from jaxllm.models.checkpoint.safetensors_writer import write_file
from jaxllm.models.errors import ModelError
from jaxllm.version import __version__

_UNFINISHED = ".unfinished-"
_NOT_COPIED = ("*.index.json", STATE_FILE)

Stage = tuple[ResolvedConfig, Sequence[jax.Array]]


def save_state(
    stages: Sequence[Stage],
    path: str,
    pattern: str | None = None,
    max_size: int | None = None,
    progress: Progress = silent,
) -> None:
    """Write the parameters of each stage to a folder, with the model's configuration and tokenizer.

    `pattern` names the files, see `plan_files`; `max_size` is in bytes. A saved state that is there already is replaced
    at the end. Raises `RequestError`, and leaves no part of the new one, where it cannot be written.
    """
    specs = _specs(stages)
    files = _plan(stages, specs, pattern, max_size)
    source = stages[0][0].folder
    with _refused(path):
        folder = Path(path).expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        if folder.samefile(source) and stages[0][0].config.model.load_format != "sharded_state":
            raise RequestError(f"path={path!r} is the model's own folder; give another", "path")
        with _locked(folder), _unfinished(folder) as new:
            _check_room(new, sum(part.num_bytes for file in files for part in file.parts))
            saved = _write(new, files, progress)
            _copy_small_files(source, new)
            manifest = _manifest([each for each, _ in stages], specs, saved)
            _write_whole(new / STATE_FILE, msgspec.json.encode(manifest))
            _publish(new, folder)


def save_for_mapping(stage: Stage, folder: Path, progress: Progress = silent) -> None:
    """Write the parameters of a stage to a folder that nobody else writes to, without checksums, to be mapped later.

    Raises `OSError`; then nothing in the folder looks like a saved state.
    """
    specs = _specs([stage])
    files = _plan([stage], specs, None, None)
    with _unfinished(folder) as new:
        saved = _write(new, files, progress, with_checksums=False)
        _write_whole(new / STATE_FILE, msgspec.json.encode(_manifest([stage[0]], specs, saved)))
        _publish(new, folder)


def _specs(stages: Sequence[Stage]) -> list[Specs]:
    return [leaf_specs(abstract_model(each.model, each.forward, jnp.dtype(each.dtype))) for each, _ in stages]


def _plan(
    stages: Sequence[Stage], specs: Sequence[Specs], pattern: str | None, max_size: int | None
) -> list[PlannedFile]:
    arrays = [
        [(shown(name), leaf) for name, leaf in zip(own, leaves, strict=True)]
        for own, (_, leaves) in zip(specs, stages, strict=True)
    ]
    meshes = [resolved.mesh for resolved, _ in stages]
    return plan_files(list(zip(meshes, arrays, strict=True)), pattern, max_size)


def _write(
    folder: Path, files: Sequence[PlannedFile], progress: Progress, *, with_checksums: bool = True
) -> dict[tuple[int, str], list[SavedPart]]:
    """Write the files; what is in them, by stage and name."""
    total, done = sum(part.num_bytes for file in files for part in file.parts), 0
    saved: dict[tuple[int, str], list[SavedPart]] = {}
    for file in files:
        checksums: dict[str, list[int]] = {}

        def pieces(parts: tuple[PlannedPart, ...], checksums: dict[str, list[int]]) -> Iterator[tuple[str, np.ndarray]]:
            nonlocal done
            for part in parts:
                data = np.ascontiguousarray(part.data).reshape(-1).view(np.uint8)
                own = checksums.setdefault(part.name, [])
                for begin in range(0, data.size, CHUNK_BYTES):
                    chunk = data[begin : begin + CHUNK_BYTES]
                    if with_checksums:
                        own.append(zlib.crc32(chunk.data))
                    yield part.name, chunk
                    done += chunk.size
                    progress("Saving weights", done, total)

        write_file(folder / file.name, [part.entry for part in file.parts], pieces(file.parts, checksums))
        for part in file.parts:
            start, shape = [first for first, _ in part.region], [last - first for first, last in part.region]
            of = SavedPart(file.name, start, shape, checksums[part.name])
            saved.setdefault((part.stage, part.name), []).append(of)
    return saved


def _manifest(
    stages: Sequence[ResolvedConfig], specs: Sequence[Specs], saved: dict[tuple[int, str], list[SavedPart]]
) -> Manifest:
    found = []
    for number, (resolved, own) in enumerate(zip(stages, specs, strict=True)):
        arrays = {}
        for path, spec in own.items():
            shape, dtype = list(spec.array.shape), np.dtype(spec.array.dtype).name
            arrays[shown(path)] = SavedArray(dtype, shape, arrangement(spec), saved[number, shown(path)])
        found.append(SavedStage(*layers_of(resolved), arrays))
    first = stages[0]
    return Manifest(
        format=FORMAT,
        version=VERSION,
        jaxllm=__version__,
        model=model_digests(first.model),
        engine=engine_options(first),
        dtype=first.model.dtype,
        stages=found,
    )


def _copy_small_files(source: Path, folder: Path) -> None:
    """Configuration and tokenizer: with them the folder is a model's."""
    found = {file for pattern in SMALL_FILES for file in source.glob(pattern)}
    left = {file for pattern in _NOT_COPIED for file in source.glob(pattern)}
    for file in sorted(found - left):
        if file.is_file():
            _write_whole(folder / file.name, file.read_bytes())


def _write_whole(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _publish(new: Path, folder: Path) -> None:
    """Bring the files of `new`, which is in the folder, to their places, the manifest last."""
    old: list[str] = []
    with suppress(ModelError):
        old = read_manifest(folder).files
    # From here to the end there is no saved state.
    (folder / STATE_FILE).unlink(missing_ok=True)
    for name in old:
        (folder / name).unlink(missing_ok=True)
    for file in sorted(new.iterdir()):
        if file.name != STATE_FILE:
            file.replace(folder / file.name)
    _sync(folder)
    (new / STATE_FILE).replace(folder / STATE_FILE)
    _sync(folder)


def _sync(folder: Path) -> None:
    """Have the names of files on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Some file systems do not know that.
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise RequestError(f"path={str(folder.parent)!r}: {needed} bytes are needed, but only {free} are free", "path")


@contextmanager
def _refused(path: str) -> Iterator[None]:
    """Raises `RequestError` where the system says no."""
    try:
        yield
    except (RequestError, jax.errors.JaxRuntimeError):
        raise
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        raise RequestError(f"path={str(path)[:500]!r}: cannot save the state: {error}", "path") from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Nobody else saves there. Raises `RequestError`."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RequestError(f"path={str(folder)!r}: another process is saving to this folder", "path") from None
        except OSError:
            pass  # There are no locks here.
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _unfinished(folder: Path) -> Iterator[Path]:
    """A new folder in it, which is gone at the end, as are those that were interrupted."""
    for left in folder.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)
    new = folder / f"{_UNFINISHED}{secrets.token_hex(4)}"
    new.mkdir()
    try:
        yield new
    finally:
        shutil.rmtree(new, ignore_errors=True)
