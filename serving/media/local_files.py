"""Images and sound below one folder of the operator's."""

import os
import stat
from contextlib import suppress
from pathlib import Path

from jaxllm.errors import ConfigError
from jaxllm.serving.media.errors import MediaFetchError, MediaTooLargeError


class LocalFolder:
    """Reads files below a folder, and nothing that links lead to outside."""

    def __init__(self, path: str) -> None:
        """Raises `ConfigError` unless `path` is a folder."""
        self._root = Path(path).resolve()
        if not self._root.is_dir():
            raise ConfigError(f"allowed_local_media_path={path!r} is not a folder")

    def read(self, path: str, most: int) -> bytes:
        """Read a file of at most `most` bytes, by its absolute path.

        Raises `MediaFetchError` for a file outside and for what is no file, and `MediaTooLargeError`.
        """
        # Whether a file exists elsewhere is nobody's business: all of these errors are one.
        refused = MediaFetchError("the file is not below --allowed-local-media-path, or cannot be read")
        try:
            parts = Path(path).resolve(strict=True).relative_to(self._root).parts
        except (OSError, ValueError, RuntimeError):
            raise refused from None
        if not parts:
            raise refused
        try:
            descriptor = self._open(parts)
        except OSError:
            raise refused from None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise refused
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                data = file.read(most + 1) if status.st_size <= most else None
        finally:
            os.close(descriptor)
        if data is None or len(data) > most:
            raise MediaTooLargeError(f"the file has more than {most} bytes")
        return data

    def _open(self, parts: tuple[str, ...]) -> int:
        """Open folder after folder, none by a link: somebody may have made one since the path was resolved."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        folder = os.open(self._root, flags | os.O_DIRECTORY)
        try:
            for part in parts[:-1]:
                inner = os.open(part, flags | os.O_DIRECTORY, dir_fd=folder)
                os.close(folder)
                folder = inner
            # A pipe must not be waited for.
            return os.open(parts[-1], flags | os.O_NONBLOCK, dir_fd=folder)
        finally:
            with suppress(OSError):
                os.close(folder)
