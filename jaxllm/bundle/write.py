"""Writes executables into a bundle."""

import hashlib
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import msgspec

from jaxllm.bundle.manifest import FILE as MANIFEST_FILE
from jaxllm.bundle.manifest import FORMAT, VERSION, Manifest, SavedFile, read_format
from jaxllm.bundle.portable import save
from jaxllm.errors import ConfigError


def check_target(folder: Path) -> None:
    """Raise `ConfigError` unless a bundle may be written there: nothing is, or an older bundle or an empty folder."""
    if folder.is_dir():
        if any(folder.iterdir()) and read_format(folder) != FORMAT:
            raise ConfigError(f"--output {folder}: the folder is neither empty nor a bundle; choose another")
    elif folder.exists():
        raise ConfigError(f"--output {folder}: is a file; give a folder")


def write_bundle(
    folder: Path,
    executables: Mapping[str, jax.stages.Compiled],
    identity: Mapping[str, Any],
    num_pages: int,
    num_snapshots: int = 0,
    stages: Sequence[Mapping[str, Any]] = (),
    num_windows: int = 0,
) -> Manifest:
    """Write executables by name to `folder`, whole or not at all: those of an engine of this identity.

    With `stages`, identities of those before the last, see `Manifest`.

    Raises:
        ConfigError: `folder` holds something else, or cannot be written.
    """
    check_target(folder)
    target = folder.resolve()
    temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}"
    try:
        temporary.mkdir(parents=True)
        files = {name: _write(temporary, name, executable) for name, executable in executables.items()}
        manifest = Manifest(
            format=FORMAT,
            version=VERSION,
            engine=dict(identity),
            num_pages=num_pages,
            temporary_bytes=max(map(_temporary_bytes, executables.values())),
            executables=files,
            num_snapshots=num_snapshots,
            num_windows=num_windows,
            stages=[dict(stage) for stage in stages],
        )
        (temporary / MANIFEST_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        _put_in_place(temporary, target)
    except OSError as error:
        raise ConfigError(f"--output {folder}: cannot be written: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return manifest


def _write(folder: Path, name: str, executable: jax.stages.Compiled) -> SavedFile:
    data, call = save(executable)
    file = f"{name}.bin"
    (folder / file).write_bytes(data)
    return SavedFile(file=file, size=len(data), sha256=hashlib.sha256(data).hexdigest(), call=call)


def _temporary_bytes(executable: jax.stages.Compiled) -> int:
    """Bytes of temporaries and code on a device."""
    memory = executable.memory_analysis()
    return 0 if memory is None else int(memory.temp_size_in_bytes + memory.generated_code_size_in_bytes)


def _put_in_place(temporary: Path, target: Path) -> None:
    """Rename the finished folder; a bundle that is there already goes once it is out of the way."""
    old = temporary.with_name(temporary.name + ".old")
    if target.exists():
        target.rename(old)
    try:
        temporary.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)
