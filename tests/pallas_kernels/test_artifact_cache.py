"""Files in the cache are whole or not there, are bounded, and never make anything fail."""

import errno
import fcntl
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxllm.pallas_kernels.artifact_cache import ArtifactCache, hold

MIB = 2**20


def test_what_is_put_is_found_by_the_next_process(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    assert ArtifactCache(folder, MIB).get("a.bin") is None
    ArtifactCache(folder, MIB).put("a.bin", b"code")
    ArtifactCache(folder, MIB).put("group/b.bin", b"")
    assert _read(ArtifactCache(folder, MIB), "a.bin") == b"code"
    assert _read(ArtifactCache(folder, MIB), "group/b.bin") == b""
    assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:40],
        lambda content: content[:-1],
        lambda content: content + b"?",
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: b"x" * 200,
        lambda content: content.replace(b"artifact 1", b"artifact 0"),
    ],
    ids=["empty", "in the header", "one byte less", "one byte more", "a flipped bit", "something else", "older"],
)
def test_corrupt_bytes_are_deleted(tmp_path: Path, damage: object, caplog: pytest.LogCaptureFixture) -> None:
    assert callable(damage)
    cache = ArtifactCache(tmp_path, MIB)
    cache.put("a.bin", b"code")
    file = tmp_path / "a.bin"
    file.write_bytes(damage(file.read_bytes()))
    assert cache.get("a.bin") is None
    assert "a.bin cannot be used and is rebuilt: corrupt or from another version" in caplog.text
    assert not file.exists()
    cache.put("a.bin", b"code")
    assert _read(cache, "a.bin") == b"code"


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    for index, hours in enumerate((5, 3, 4, 0)):
        folder = tmp_path / str(index)
        folder.mkdir()
        (folder / "step_1.bin").write_bytes(bytes(100))
        _used(folder, hours)
    ArtifactCache(tmp_path, 400).prune()
    assert len(list(tmp_path.iterdir())) == 4
    ArtifactCache(tmp_path, 250).prune()
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["1", "3"]
    ArtifactCache(tmp_path, 0).prune()
    assert [folder.name for folder in tmp_path.iterdir()] == ["3"]


def test_a_writer_prunes_at_first_and_after_every_64th(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, there = ArtifactCache(tmp_path, 6400), list[int]()
    monkeypatch.setattr(cache, "prune", lambda: there.append(len(list(tmp_path.iterdir()))))
    for index in range(6):
        cache.put(f"{index}.bin", bytes(50))
    assert there == [1, 3, 5]


def test_no_folder_is_left_half_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the process is killed while it removes one: what is left is not found under its name."""
    folder = _old_folder(tmp_path / "model")
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    ArtifactCache(tmp_path, 0).prune()
    assert not folder.exists()
    monkeypatch.undo()
    for left in tmp_path.iterdir():
        _used(left, 5)
    ArtifactCache(tmp_path, 0).prune()
    assert not list(tmp_path.iterdir())


def _hold_until_killed(folder: Path, held: Any) -> None:
    hold(folder)
    held.set()
    signal.pause()


def test_what_another_process_holds_stays_until_that_ends(tmp_path: Path) -> None:
    folder = _old_folder(tmp_path / "model")
    context = multiprocessing.get_context("spawn")
    held = context.Event()
    process = context.Process(target=_hold_until_killed, args=(folder, held))
    process.start()
    try:
        assert held.wait(60)
        ArtifactCache(tmp_path, 0).prune()
        assert folder.is_dir()
    finally:
        process.kill()
        process.join()
    ArtifactCache(tmp_path, 0).prune()
    assert not folder.exists()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS])
def test_without_locks_nothing_is_held_and_no_file_left_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    folder = _old_folder(tmp_path / "model")
    opened: list[int] = []

    def flock(descriptor: int, _: int) -> None:
        opened.append(descriptor)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    hold(folder)
    ArtifactCache(tmp_path, 0).prune()
    assert not folder.exists()
    assert len(opened) == 2
    for descriptor in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


@pytest.mark.parametrize("who", [fcntl.LOCK_SH, fcntl.LOCK_EX | fcntl.LOCK_NB], ids=["holder", "pruner"])
def test_a_lock_of_a_folder_that_is_gone_is_none_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: int
) -> None:
    """As when a process prunes the folder, and another one makes it again, just before the lock is there."""
    folder = _old_folder(tmp_path / "cache" / "model")
    replaced: list[Path] = []

    def flock(descriptor: int, kind: int, lock: Callable[[int, int], None] = fcntl.flock) -> None:
        if kind == who and not replaced:
            replaced.append(folder.rename(tmp_path / "gone"))
            _old_folder(folder)
        lock(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", flock)
    if who == fcntl.LOCK_SH:
        hold(folder)
    ArtifactCache(folder.parent, 0).prune()
    assert replaced
    assert (folder / "config.json").is_file()


def test_reading_counts_as_use_and_writing_keeps_the_bound(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path, 1000)
    for name in ("a", "b/c", "d"):
        cache.put(name, bytes(200))
    for entry in tmp_path.iterdir():
        _used(entry, hours=2)
    _used(tmp_path / "b", hours=3)
    assert _read(cache, "b/c") == bytes(200)
    cache.put("e", bytes(700))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "e"]


def test_a_full_disk_costs_only_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full")
    cache = ArtifactCache(tmp_path, MIB)
    cache.put("a.bin", b"before")

    class Unfinished(type(tmp_path)):  # type: ignore[misc]
        """A path whose files lie on a full disk until they are renamed."""

        def open(self, *arguments: object, **options: object) -> object:
            return full.open("wb", buffering=0)

        def with_name(self, name: str) -> "Unfinished":
            super().with_name(name).touch()
            return Unfinished(super().with_name(name))

        def __truediv__(self, name: str) -> "Unfinished":
            return Unfinished(super().__truediv__(name))

    ArtifactCache(Unfinished(tmp_path), MIB).put("a.bin", b"after")
    assert "a.bin for the next start: [Errno 28] No space left on device" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]
    assert _read(cache, "a.bin") == b"before"


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    cache = ArtifactCache(tmp_path / "file", MIB)
    assert cache.get("a.bin") is None
    cache.put("a.bin", b"code")
    assert "for the next start" in caplog.text


def _write_forever(folder: Path) -> None:
    cache = ArtifactCache(folder, 1000 * MIB)
    while True:
        cache.put("a.bin", os.urandom(1) * MIB)


def test_a_killed_writer_leaves_nothing_for_long(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_write_forever, args=(tmp_path,))
    process.start()
    try:
        while not list(tmp_path.glob("*.unfinished")):
            assert process.is_alive()
    finally:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    cache = ArtifactCache(tmp_path, 1000 * MIB)
    found = cache.get("a.bin")
    assert found is None or bytes(found) == bytes(found[:1]) * MIB
    (tmp_path / "b.bin.0123.unfinished").write_bytes(b"half")
    for file in tmp_path.iterdir():
        _used(file, hours=2)
    cache.prune()
    assert {path.name for path in tmp_path.iterdir()} <= {"a.bin"}


def _write_often(folder: Path, byte: int) -> None:
    cache = ArtifactCache(folder, 1000 * MIB)
    for _ in range(50):
        cache.put("a.bin", bytes([byte]) * MIB)


def test_two_processes_may_write_while_a_third_reads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache, context = ArtifactCache(tmp_path, 1000 * MIB), multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_often, args=(tmp_path, byte)) for byte in (1, 2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        found = cache.get("a.bin")
        assert found is None or bytes(found) in (b"\1" * MIB, b"\2" * MIB)
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert cache.get("a.bin") is not None
    assert not caplog.records
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


def _read(cache: ArtifactCache, name: str) -> bytes:
    found = cache.get(name)
    assert found is not None
    return bytes(found)


def _old_folder(folder: Path) -> Path:
    """A folder with a file, used for the last time hours ago."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes(bytes(100))
    _used(folder, hours=5)
    return folder


def _used(entry: Path, hours: float) -> None:
    """Set when an entry was used last."""
    when = entry.stat().st_mtime - 3600 * hours
    os.utime(entry, (when, when))
