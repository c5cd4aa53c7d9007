"""Folders of the user's cache that stand for models whose files are not those of a checkpoint."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from jaxllm.pallas_kernels.artifact_cache import ArtifactCache, hold

LARGEST_CACHE = 2**30
"""Bytes of all folders together, without the weights that they point to: those of about a hundred models."""


def made_folder(home: Path, name: str, fill: Callable[[Path], None]) -> Path:
    """The folder `name` in `home`, which `fill` fills if it is not there.

    It is held as long as this process lives: weights may be read again after days. Where `home` cannot be written, it
    is a temporary folder.
    """
    folder = home / name
    hold(folder)
    if folder.is_dir():
        with suppress(OSError):
            os.utime(folder)  # When it was used last.
        return folder
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = Path(tempfile.mkdtemp(dir=home, prefix=".new-"))
    except OSError:
        new = folder = Path(tempfile.mkdtemp(prefix="jaxllm-model-"))
    try:
        fill(new)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    if new != folder:
        try:
            new.rename(folder)
        except OSError:  # Another process was faster.
            shutil.rmtree(new, ignore_errors=True)
        hold(folder)
        ArtifactCache(home, LARGEST_CACHE).prune()
    return folder


def cache_home(kind: str) -> Path:
    """The user's folder of such folders of a `kind`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxllm" / kind


def digest_of(about: str, files: Iterable[Path]) -> str:
    """A name for what is made of these files: other sizes or times of change give another."""
    digest = sha256(f"{about}\n".encode())
    for file in files:
        status = file.stat()
        digest.update(f"{file}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:32]
