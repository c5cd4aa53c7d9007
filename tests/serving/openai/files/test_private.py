"""Clients' files are nobody else's on the machine, and a disk that is full is no bug of the server's."""

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxllm.errors import ConfigError
from jaxllm.serving.http.errors import describe, disk_problem
from jaxllm.serving.openai.batches.lines import BatchAnswer
from jaxllm.serving.openai.batches.record import BatchRecord
from jaxllm.serving.openai.files import store as module
from jaxllm.serving.openai.files.private import open_private, opener, write_whole
from jaxllm.serving.openai.files.store import FileStore
from jaxllm.serving.openai.protocol.files import FileObject

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, errno.EMFILE)


def modes(folder: Path) -> set[int]:
    return {path.stat().st_mode & 0o777 for path in folder.iterdir()}


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def keep(store: FileStore) -> FileObject:
    file_id = store.new_id("me")
    with open_private(store.path(file_id), "wb") as file:
        file.write(b"x")
    made = FileObject(
        id=file_id,
        bytes=1,
        created_at=0,
        expires_at=None,
        filename="a",
        purpose="batch",  # type: ignore[arg-type]
    )
    store.add("me", made)
    return made


def make(folder: Path | None) -> FileStore:
    return FileStore(None if folder is None else str(folder), max_files=9, max_bytes=999, lifetime=9)


def test_a_new_folder_and_all_in_it_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "above" / "files"
    store = make(folder)
    keep(store)
    write_whole(folder / "batch_1.batch.json", b"{}")
    with BatchRecord(str(folder / "file-2"), (), opener=opener):
        pass
    assert folder.stat().st_mode & 0o777 == 0o700
    assert modes(folder) == {0o600}
    store.close()


def test_what_an_earlier_server_left_open_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir(mode=0o755)
    for name in ("file-1", "file-1.file.json", "lock", "batch_1.batch.json"):
        (folder / name).write_bytes(b"{}")
    make(folder).close()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert modes(folder) == {0o600}


def test_what_is_not_the_servers_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"")
    before = tmp_path.stat().st_mode
    make(tmp_path).close()
    assert tmp_path.stat().st_mode == before
    assert (tmp_path / "other").stat().st_mode & 0o777 == 0o666


@pytest.mark.parametrize("number", FULL)
def test_a_full_disk_is_no_bug(number: int, caplog: pytest.LogCaptureFixture) -> None:
    error = OSError(number, os.strerror(number), "/srv/secret/file-1")
    with caplog.at_level(logging.WARNING):
        told = describe(error, "r1")
    assert (told.status, told.details.code) == (503, "storage_unavailable")
    assert "/srv" not in told.details.message
    assert all(record.exc_info is None for record in caplog.records)
    assert disk_problem(ValueError("x")) is None


def test_a_file_that_cannot_be_recorded_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make(tmp_path / "files")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "write_whole", full)
    with pytest.raises(OSError, match="No space"):
        keep(store)
    assert store.files("me") == []
    store.close()


def test_a_part_of_a_file_is_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"before")

    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / "a", b"after")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"before"


def test_answers_that_do_not_fit_leave_whole_lines(tmp_path: Path) -> None:
    class Small:
        """A file on a disk with room for some bytes."""

        def __init__(self, inner: Any, room: int) -> None:
            self.inner, self.room = inner, room

        def write(self, data: bytes) -> int:
            if not self.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            taken = self.inner.write(data[: self.room])
            self.room -= taken
            return int(taken)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    def answer(name: str) -> BatchAnswer:
        return BatchAnswer(f"batch_req_{name}", name, None, None)

    with BatchRecord(str(tmp_path / "out"), ("a", "b")) as record:
        record.add(answer("a"))
        whole = (tmp_path / "out").read_bytes()
        record._file = Small(record._file, 5)
        with pytest.raises(ConfigError, match="No space") as caught:
            record.add(answer("b"))
    assert (tmp_path / "out").read_bytes() == whole
    assert disk_problem(caught.value) is not None
