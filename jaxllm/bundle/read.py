"""Executables out of a bundle, or the reason why not."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax

from jaxllm.bundle.differences import differences
from jaxllm.bundle.manifest import Manifest, read_file, read_manifest
from jaxllm.bundle.portable import DeviceAssignment, SavedCall, load
from jaxllm.errors import ConfigError


class Bundle:
    """A bundle whose manifest has been read. Nothing of it runs before `check`."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest

    @classmethod
    def open(cls, folder: str) -> "Bundle":
        """Read the manifest. Raises `ConfigError` when there is none, or it is broken, or of another version."""
        path = Path(folder)
        return cls(path, read_manifest(path))

    def of_stage(self, number: int, count: int) -> "Bundle":
        """Its part for one of `count` stages; `check` says so where it is for another number of them."""
        return Bundle(self.folder, self.manifest.of_stage(number, count))

    def check(self, identity: Mapping[str, Any], names: Iterable[str]) -> None:
        """Raise `ConfigError` unless it was made for an engine of this identity and has executables of these names.

        The message names every difference.
        """
        found = differences(self.manifest.engine, identity)
        if found:
            raise ConfigError(
                f"executables={self.folder}: this bundle is for another engine: {'; '.join(found)}. Pass the options "
                "it was compiled with, compile it again (`jaxllm compile`), or omit --executables"
            )
        missing = sorted(set(names) - set(self.manifest.executables))
        if missing:
            raise ConfigError(f"executables={self.folder}: incomplete: it lacks {', '.join(missing)}; compile it again")

    def read(self, assignment: DeviceAssignment) -> "BundledExecutables":
        """The executables, for these devices. Raises `ConfigError` when a file is missing or corrupt."""
        contents = {
            name: (read_file(self.folder, saved), saved.call) for name, saved in self.manifest.executables.items()
        }
        return BundledExecutables(self.folder, contents, assignment)


class BundledExecutables:
    """The bytes of a bundle's executables. Each can be loaded once."""

    def __init__(
        self, folder: Path, contents: dict[str, tuple[bytes, SavedCall]], assignment: DeviceAssignment
    ) -> None:
        self._folder = folder
        self._contents = contents
        self._assignment = assignment

    def load(self, name: str, arguments: tuple[Any, ...], result: Any) -> jax.stages.Compiled:
        """The executable of a name, see `portable.load`; its bytes may go. Raises `ConfigError` if it does not suit."""
        data, call = self._contents.pop(name)
        try:
            return load(data, call, arguments, result, self._assignment)
        except ConfigError as error:
            raise ConfigError(f"executables={self._folder}: {error}") from error
