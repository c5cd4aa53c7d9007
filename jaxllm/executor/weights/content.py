"""Which weights files have, by their content: times and sizes alone may be the same for others."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from jaxllm.config.progress import Progress, silent

_SAMPLES, _SAMPLE_BYTES = 64, 4096
_PIECE_BYTES, _READ_BYTES = 64 * 2**20, 2**20
_MOST_KEPT = 4096


def content_digest(files: Iterable[Path], kept: Path | None = None, progress: Progress = silent) -> str:
    """A digest of the names and contents of files; a gigabyte takes a processor about a second. Raises `OSError`.

    Files that have not changed since their digests were written to the file `kept` are not read.
    """
    known, paths = _read_kept(kept), list(files)
    digest = hashlib.sha256()
    found: dict[str, str] = {}
    done, total = 0, sum(path.stat().st_size for path in paths)
    for path in paths:
        state = _state_of(path)
        content = known.get(state) or _content(path, partial(_report, progress, done, total))
        # Where times are not those of a clock, as in images of file systems, other content may look the same.
        if state:
            found[state] = content
        digest.update(f"{path.name} {content}\n".encode())
        done += path.stat().st_size
    if kept is not None and not found.items() <= known.items():
        _write_kept(kept, known | found)
    return digest.hexdigest()


def _report(progress: Progress, before: int, total: int, done: int) -> None:
    progress("Hashing the checkpoint", before + done, total)


def _content(path: Path, report: Callable[[int], None]) -> str:
    """A digest of the digests of a file's pieces, which threads read at the same time; `report` is told its bytes."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file, ThreadPoolExecutor(min(8, os.cpu_count() or 1), "hash") as pool:
        size = os.fstat(file.fileno()).st_size
        begins = range(0, size, _PIECE_BYTES)
        for begin, found in zip(begins, pool.map(partial(_piece, file.fileno()), begins), strict=True):
            digest.update(found)
            report(min(begin + _PIECE_BYTES, size))
    return digest.hexdigest()


def _piece(descriptor: int, begin: int) -> bytes:
    digest = hashlib.sha256()
    place, end = begin, begin + _PIECE_BYTES
    # Some file systems give less than what is asked for.
    while place < end and (data := os.pread(descriptor, min(_READ_BYTES, end - place), place)):
        digest.update(data)
        place += len(data)
    return digest.digest()


def _state_of(path: Path) -> str:
    """What changes with a file's content; empty where nothing is sure to."""
    found = path.stat()
    if found.st_ctime_ns % 1_000_000_000 == 0:
        return ""
    # Samples as well: it costs little to be surer.
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for number in range(_SAMPLES):
            file.seek(found.st_size * number // _SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
    times = (found.st_mtime_ns, found.st_ctime_ns)
    return " ".join(map(str, (path.resolve(), found.st_dev, found.st_ino, found.st_size, *times, digest.hexdigest())))


def _read_kept(kept: Path | None) -> dict[str, str]:
    if kept is None:
        return {}
    try:
        found, owner = json.loads(kept.read_text()), kept.stat().st_uid
    except (OSError, ValueError, RecursionError):
        return {}
    # Who can write here can have wrong pages or weights found, as who can write the files that have these.
    return found if owner == os.geteuid() and isinstance(found, dict) else {}


def _write_kept(kept: Path, known: dict[str, str]) -> None:
    temporary = kept.with_name(f".{kept.name}-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(dict(list(known.items())[-_MOST_KEPT:]), file)
        temporary.rename(kept)
    except OSError:
        # The next start takes a little longer.
        temporary.unlink(missing_ok=True)
