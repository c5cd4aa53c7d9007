"""The description of a bundle: `manifest.json`, read as data of fixed types and never as code."""

import hashlib
import re
from pathlib import Path
from typing import Annotated, Any

import msgspec

from jaxllm.bundle.portable import SavedCall
from jaxllm.errors import ConfigError
from jaxllm.manifest_file import Header, ManifestFormat

FILE = "manifest.json"
FORMAT = "jaxllm executables"
VERSION = 1
LARGEST_MANIFEST = 64 * 2**20
"""Bytes. The manifest of a large model has a few MB."""

_FILE_NAME = re.compile(r"[a-z0-9_]{1,64}\.bin")


class SavedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One executable: its file, and how to call it."""

    file: str
    size: int
    sha256: str
    call: SavedCall


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A bundle's contents.

    `engine` is the identity of the engines that it is for; `num_pages` is the number of KV pages, the null page
    included, `num_snapshots` that of snapshots of recurrent states, `num_windows` that of windows of sound;
    `temporary_bytes` the most that an executable needs on a device besides its arguments, code included. For an engine
    in stages, `engine` is the identity of the last one, and `stages` those of the others, whose executables have names
    that `stage_prefix` begins.
    """

    format: str
    version: int
    engine: dict[str, Any]
    num_pages: Annotated[int, msgspec.Meta(ge=2, lt=2**31)]
    temporary_bytes: Annotated[int, msgspec.Meta(ge=0)]
    executables: dict[str, SavedFile]
    num_snapshots: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] = 0
    num_windows: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] = 0
    stages: list[dict[str, Any]] = []

    def of_stage(self, number: int, count: int) -> "Manifest":
        """The part for one of `count` stages; this, where it is for another number of them."""
        if count != len(self.stages) + 1 or count == 1:
            return self
        others = tuple(stage_prefix(each, count) for each in range(count - 1))
        if number == count - 1:
            own = {name: saved for name, saved in self.executables.items() if not name.startswith(others)}
            return msgspec.structs.replace(self, executables=own, stages=[])
        prefix = others[number]
        own = {name[len(prefix) :]: saved for name, saved in self.executables.items() if name.startswith(prefix)}
        return msgspec.structs.replace(self, engine=self.stages[number], executables=own, stages=[])


def stage_prefix(number: int, count: int) -> str:
    """How names of executables of one of `count` stages begin; nothing for the last one."""
    return f"stage_{number}_" if number < count - 1 else ""


_FORMAT = ManifestFormat(
    name=FORMAT,
    version=VERSION,
    content=Manifest,
    max_bytes=LARGEST_MANIFEST,
    describes="a bundle of executables",
    remedy="compile the bundle again with `jaxllm compile`",
    error=ConfigError,
)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a bundle.

    Raises:
        ConfigError: there is none, or it is broken, or of another version; the message names the folder.
    """
    path = folder / FILE
    if not folder.is_dir():
        raise ConfigError(f"executables={folder}: no such folder; `jaxllm compile` makes one")
    if not path.is_file():
        raise ConfigError(f"executables={folder}: not a bundle of executables: it has no {FILE}")
    manifest = _FORMAT.read(path)
    for name, saved in manifest.executables.items():
        # Whatever the manifest says, nothing outside the folder is read.
        if not _FILE_NAME.fullmatch(saved.file):
            raise ConfigError(f"{path}: invalid: executable {name!r} has the invalid file name {saved.file!r}")
    return manifest


def read_format(folder: Path) -> str | None:
    """The format that a folder's manifest names, of whatever version; None when there is none to read."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=Header).format
    except (OSError, msgspec.MsgspecError):
        return None


def read_file(folder: Path, saved: SavedFile) -> bytes:
    """The bytes of an executable, which are those that were written.

    Raises:
        ConfigError: the file is missing or has changed.
    """
    path = folder / saved.file
    if path.is_symlink() or not path.is_file():
        raise ConfigError(f"{path}: missing or not a regular file; compile the bundle again")
    size = path.stat().st_size
    if size != saved.size:
        raise ConfigError(f"{path}: corrupt: {size} bytes instead of {saved.size}; compile the bundle again")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if hashlib.sha256(data).hexdigest() != saved.sha256:
        raise ConfigError(f"{path}: corrupt: its checksum is wrong; compile the bundle again")
    return data
