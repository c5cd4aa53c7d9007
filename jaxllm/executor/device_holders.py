"""Which processes have an accelerator open, from `/proc`: TPUs serve one process at a time."""

import getpass
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil

PATTERNS = ("accel[0-9]*", "vfio/[0-9]*", "nvidia[0-9]*", "dxg")
"""Device files: TPUs (older and newer drivers), NVIDIA GPUs, GPUs beneath WSL."""

LOCK_FILES = ("libtpu_lockfile", "libtpu.so_lockfile")
"""In `/tmp`; libtpu makes one, and a process that was killed leaves it after."""


class Holder(msgspec.Struct, frozen=True):
    """A process with device files open."""

    pid: int
    user: str
    command: str
    files: list[str]


def device_files(root: Path = Path("/dev")) -> list[str]:
    """The accelerators' device files."""
    return sorted(str(path) for pattern in PATTERNS for path in root.glob(pattern))


def holders(files: list[str], proc: Path = Path("/proc")) -> list[Holder]:
    """Processes that have one of `files` open, but for this one and those it comes from.

    Processes of other users show only to root, those of other containers to nobody here.
    """
    known = {os.path.realpath(file) for file in files}
    own = {process.pid for process in (psutil.Process(), *psutil.Process().parents())}
    found = []
    for folder in sorted(proc.glob("[0-9]*")):
        held = sorted({target for target in _open_files(folder) if target in known})
        if held and int(folder.name) not in own:
            found.append(_describe(int(folder.name), held))
    return found


def hidden_processes(proc: Path = Path("/proc")) -> bool:
    """Whether there are processes whose files this user may not see."""
    return any(not os.access(folder / "fd", os.R_OK) for folder in proc.glob("[0-9]*"))


def _open_files(folder: Path) -> Iterator[str]:
    try:
        entries = list((folder / "fd").iterdir())
    except OSError:
        return
    for entry in entries:
        try:
            yield str(entry.readlink())
        except OSError:
            continue


def _describe(pid: int, held: list[str]) -> Holder:
    try:
        process = psutil.Process(pid)
        return Holder(pid, process.username(), " ".join(process.cmdline())[:120], held)
    except psutil.Error:
        return Holder(pid, "?", "?", held)


class LockFile(msgspec.Struct, frozen=True):
    """A lock file of libtpu; `is_mine`: this user may remove it."""

    path: str
    owner: str
    is_mine: bool


def lock_files(folder: Path = Path("/tmp")) -> list[LockFile]:
    """The lock files that are there."""
    found = []
    for path in (folder / name for name in LOCK_FILES):
        try:
            owner = path.owner()
        except (OSError, KeyError):
            continue
        found.append(LockFile(str(path), owner, owner == getpass.getuser()))
    return found
