"""Reading the manifest of a folder: data of fixed types that anybody may have written."""

from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

Manifest = TypeVar("Manifest", bound=msgspec.Struct)


class Header(msgspec.Struct):
    """The fields of manifests of every format and version. `jaxllm` is the version that wrote it, where it says so."""

    format: str
    version: int
    jaxllm: str | None = None


@dataclass(frozen=True, kw_only=True)
class ManifestFormat(Generic[Manifest]):
    """A format of manifests."""

    name: str
    version: int
    content: type[Manifest]
    max_bytes: int
    """Maximum size of a file."""
    describes: str
    """Name of the thing that has such a manifest, for errors."""
    remedy: str
    """Advice about another version, for errors."""
    error: type[Exception]

    def read(self, path: Path) -> Manifest:
        """The manifest in a file. Raises `error`, which names the file, and what is wrong in it."""
        try:
            with path.open("rb") as file:
                text = file.read(self.max_bytes + 1)
            if len(text) > self.max_bytes:
                raise self.error(f"{path}: larger than {self.max_bytes >> 20} MiB: not {self.describes}")
            # Other versions may have other fields.
            header = msgspec.json.decode(text, type=Header)
            if header.format != self.name:
                raise self.error(f"{path}: not {self.describes}: its format is {header.format!r}")
            if header.version != self.version:
                writer = "" if header.jaxllm is None else f" by jaxllm {header.jaxllm},"
                raise self.error(
                    f"{path}: format version {header.version},{writer} but this jaxllm reads version {self.version}; "
                    f"{self.remedy}"
                )
            return msgspec.json.decode(text, type=self.content)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self.error(f"{path}: invalid: {error}") from error
