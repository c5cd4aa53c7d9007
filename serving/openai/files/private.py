"""Files of clients on disk: nobody else on the machine reads them, and a disk that is full is no bug."""

import os
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

_FOLDER: Final = 0o700
_FILE: Final = 0o600
_OTHERS: Final = 0o077
_OURS: Final = ("lock", "file-*", "batch_*", "files", "responses.db*")


def open_private(path: Path, mode: str, **settings: Any) -> IO[Any]:
    """`path.open`, where a new file is its owner's alone."""
    return open(path, mode, opener=opener, **settings)


def opener(name: str, flags: int) -> int:
    """An `opener` of `open` that makes files which nobody else may read."""
    return os.open(name, flags, _FILE)


def make_private(folder: Path) -> None:
    """Make a folder, or take one that is there, with all that others may read of the files in it. Raises `OSError`.

    What belongs to another user stays as it is: an administrator has set it up.
    """
    folder.mkdir(mode=_FOLDER, parents=True, exist_ok=True)
    ours = {path for pattern in _OURS for path in folder.glob(pattern)}
    # A folder that holds something else is shared with who put it there.
    closed = [folder] if ours.issuperset(folder.iterdir()) else []
    for path in (*closed, *ours):
        found = path.lstat()
        if found.st_uid == os.geteuid() and found.st_mode & _OTHERS and not path.is_symlink():
            with suppress(PermissionError):
                path.chmod(found.st_mode & ~_OTHERS & 0o7777)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it has either all of the data or what was there before. Raises `OSError`."""
    part = path.with_name(f"{path.name}.part")
    try:
        with open_private(part, "wb") as file:
            file.write(data)
        part.replace(path)
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
