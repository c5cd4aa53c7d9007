"""Copies in files: what is read is what was written, whoever shares, damages or fills the folder."""

import contextlib
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from jaxllm.kv.tiers.disk.folder import STALE_SECONDS, TEMPORARY, DiskFolder, FolderFullError
from jaxllm.kv.tiers.disk.page_file import HEADER_BYTES, DamagedFileError, PageKey, parse_name
from jaxllm.kv.tiers.host_pool import crc

LAYOUT, OTHER = b"\1" * 32, b"\2" * 32
SIZE = 512
FILE = SIZE + HEADER_BYTES
MANY = 1 << 20


def digest(number: int) -> bytes:
    return bytes([number % 7]) + number.to_bytes(31, "big")


def content(number: int, part: int = 0, version: int = 0) -> np.ndarray:
    return np.random.default_rng([number, part, version]).integers(0, 256, SIZE).astype(np.uint8)


def put(folder: DiskFolder, number: int, part: int = 0) -> None:
    data = content(number, part)
    folder.write(digest(number), part, data, crc(data))


def get(folder: DiskFolder, number: int, part: int = 0) -> np.ndarray:
    data = np.zeros(SIZE, np.uint8)
    assert folder.read(digest(number), part, data) == crc(data)
    return data


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*.*") if path.is_file() and parse_name(path.name))


def test_others_find_what_one_has_written(tmp_path: Path) -> None:
    """Also one that was there before, once it looks; not one with another layout."""
    before, other = DiskFolder(tmp_path, LAYOUT, MANY, "{}"), DiskFolder(tmp_path, OTHER, MANY)
    folder = DiskFolder(tmp_path, LAYOUT, MANY)
    for number in range(5):
        put(folder, number)
    put(folder, 0, 3)
    assert [folder.has(digest(0), part) for part in range(5)] == [True, False, False, True, False]
    after = DiskFolder(tmp_path, LAYOUT, MANY)
    before.scan()
    other.scan()
    for each in (folder, after, before):
        assert len(each) == 5
        assert np.array_equal(get(each, 0, 3), content(0, 3))
    assert not len(other)
    assert other.total == folder.total == 6 * FILE
    assert (tmp_path / LAYOUT.hex()[:32] / "layout.json").read_text() == "{}"


def test_nobody_else_can_look_at_it(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        put(DiskFolder(tmp_path, LAYOUT, MANY), 1)
    finally:
        os.umask(old)
    for path in tmp_path.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


def cut(path: Path) -> None:
    os.truncate(path, FILE - 7)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES + 5] ^= 1
    path.write_bytes(data)


def exchange(path: Path) -> None:
    others = [each for each in files(path.parents[1]) if each != path]
    path.write_bytes(others[0].read_bytes())


@pytest.mark.parametrize("damage", [cut, flip, exchange, lambda path: os.truncate(path, 0)])
def test_damage_is_noticed(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    folder = DiskFolder(tmp_path, LAYOUT, MANY)
    put(folder, 1)
    put(folder, 2)
    path = next(path for path in files(tmp_path) if path.name.startswith(digest(1).hex()))
    damage(path)
    data = np.zeros(SIZE, np.uint8)
    with contextlib.suppress(DamagedFileError):
        assert folder.read(digest(1), 0, data) != crc(data)
    folder.discard(digest(1), 0)
    assert not folder.has(digest(1), 0)
    assert not path.exists()


def test_a_file_of_another_model_is_noticed(tmp_path: Path) -> None:
    folder, other = DiskFolder(tmp_path, LAYOUT, MANY), DiskFolder(tmp_path, OTHER, MANY)
    put(folder, 1)
    put(other, 1)
    first, second = files(tmp_path)
    second.write_bytes(first.read_bytes())
    with pytest.raises(DamagedFileError, match="is not of the page"):
        other.read(digest(1), 0, np.zeros(SIZE, np.uint8))


def test_links_and_files_of_others_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = DiskFolder(tmp_path, LAYOUT, MANY)
    put(folder, 1)
    (path,) = files(tmp_path)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        folder.read(digest(1), 0, np.zeros(SIZE, np.uint8))
    path.unlink()
    (tmp_path / "elsewhere").rename(path)
    get(folder, 1)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match="own user"):
        folder.read(digest(1), 0, np.zeros(SIZE, np.uint8))
    folder.scan()
    assert not folder.has(digest(1), 0)
    assert path.exists()


def test_the_least_recently_used_digest_goes_with_all_its_parts(tmp_path: Path) -> None:
    folder = DiskFolder(tmp_path, LAYOUT, 20 * FILE)
    for number in range(10):
        put(folder, number, 0)
        put(folder, number, 1)
        for path in files(tmp_path):
            if path.name.startswith(digest(number).hex()):
                os.utime(path, (1000 + number, 1000 + number))
    folder.touch([digest(1), digest(0)])
    put(folder, 10)
    there = [number for number in range(11) if folder.has(digest(number), 0)]
    assert there == [0, 1, *range(3, 11)]
    assert [number for number in range(10) if folder.has(digest(number), 1)] == there[:-1]
    assert folder.total == sum(path.stat().st_size for path in files(tmp_path)) <= 20 * FILE


def test_other_layouts_count_and_are_evicted(tmp_path: Path) -> None:
    old = DiskFolder(tmp_path, OTHER, MANY)
    for number in range(8):
        put(old, number)
    for path in files(tmp_path):
        os.utime(path, (1000, 1000))
    folder = DiskFolder(tmp_path, LAYOUT, 10 * FILE)
    for number in range(10):
        put(folder, number)
        assert sum(path.stat().st_size for path in files(tmp_path)) <= 10 * FILE
    assert all(folder.has(digest(number), 0) for number in range(2, 10))
    with pytest.raises(FileNotFoundError):
        get(old, 0)


def test_a_smaller_limit_holds_from_the_start(tmp_path: Path) -> None:
    before = DiskFolder(tmp_path, LAYOUT, MANY)
    for number in range(8):
        put(before, number)
    after = DiskFolder(tmp_path, OTHER, 4 * FILE)
    assert after.total == sum(path.stat().st_size for path in files(tmp_path)) == 3 * FILE
    before.look_again()
    assert len(before) == 3


def test_what_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(FolderFullError, match="does not fit"):
        put(DiskFolder(tmp_path, LAYOUT, FILE - 1), 1)
    assert not files(tmp_path)


def test_one_evicts_at_a_time(tmp_path: Path) -> None:
    one, other = (DiskFolder(tmp_path, LAYOUT, FILE) for _ in range(2))
    put(one, 1)
    other.scan()
    with one._locked(), pytest.raises(FolderFullError, match="another engine"):
        put(other, 2)
    put(other, 2)
    assert len(files(tmp_path)) == 1


def test_what_was_left_behind_is_deleted(tmp_path: Path) -> None:
    folder = DiskFolder(tmp_path, LAYOUT, MANY)
    inner = tmp_path / LAYOUT.hex()[:32] / TEMPORARY
    for name, age in (("old", STALE_SECONDS + 1), ("new", 0)):
        (inner / name).write_bytes(b"x")
        os.utime(inner / name, (time.time() - age, time.time() - age))
    folder.scan()
    assert [path.name for path in inner.iterdir()] == ["new"]


def test_a_folder_that_vanishes_and_comes_back(tmp_path: Path) -> None:
    folder = DiskFolder(tmp_path, LAYOUT, MANY)
    put(folder, 1)
    inner = tmp_path / LAYOUT.hex()[:32]
    inner.rename(tmp_path / "gone")
    with pytest.raises(FileNotFoundError):
        put(folder, 2)
    with pytest.raises(FileNotFoundError):
        get(folder, 1)
    (tmp_path / "gone").rename(inner)
    put(folder, 2)
    assert np.array_equal(get(folder, 1), content(1))


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_that_can_only_be_read(tmp_path: Path) -> None:
    put(DiskFolder(tmp_path, LAYOUT, MANY), 1)
    folders = [tmp_path, *(path for path in tmp_path.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o500)
    try:
        folder = DiskFolder(tmp_path, LAYOUT, MANY)
        assert np.array_equal(get(folder, 1), content(1))
        with pytest.raises(PermissionError):
            put(folder, 2)
    finally:
        for path in folders:
            path.chmod(0o700)


def test_names() -> None:
    assert parse_name(PageKey(LAYOUT, digest(5), 12).name) == (digest(5), 12)
    for name in ("", "x", "layout.json", f"{digest(5).hex()}", f"{digest(5).hex()}.x", f"{'z' * 64}.1", f"{'0' * 64}."):
        assert parse_name(name) is None


class Shared(RuleBasedStateMachine):
    """Three engines, two of them of one model, write, read, evict and damage: none ever reads other bytes."""

    @initialize(room=st.integers(1, 12))
    def start(self, room: int) -> None:
        self.scratch = tempfile.TemporaryDirectory()
        self.root = Path(self.scratch.name)
        self.room = room
        self.folders = [DiskFolder(self.root, layout, room * FILE) for layout in (LAYOUT, LAYOUT, OTHER)]

    @rule(who=st.integers(0, 2), number=st.integers(0, 9), part=st.integers(0, 2))
    def write(self, who: int, number: int, part: int) -> None:
        data = content(number, part, version=who // 2)
        self.folders[who].write(digest(number), part, data, crc(data))

    @rule(who=st.integers(0, 2), number=st.integers(0, 9), part=st.integers(0, 2))
    def read(self, who: int, number: int, part: int) -> None:
        data, folder = np.zeros(SIZE, np.uint8), self.folders[who]
        if not folder.has(digest(number), part):
            return
        try:
            if folder.read(digest(number), part, data) == crc(data):
                assert np.array_equal(data, content(number, part, version=who // 2))
        except FileNotFoundError:
            folder.forget(digest(number), part)
        except DamagedFileError:
            folder.discard(digest(number), part)

    @rule(who=st.integers(0, 2))
    def restart(self, who: int) -> None:
        self.folders[who] = DiskFolder(self.root, (LAYOUT, LAYOUT, OTHER)[who], self.room * FILE)

    @rule(who=st.integers(0, 2), numbers=st.lists(st.integers(0, 9)))
    def use(self, who: int, numbers: list[int]) -> None:
        self.folders[who].touch([digest(number) for number in numbers])

    @rule(who=st.integers(0, 2))
    def look(self, who: int) -> None:
        self.folders[who].scan()

    @rule(who=st.integers(0, 2))
    def clear(self, who: int) -> None:
        self.folders[who].clear()
        assert not len(self.folders[who])

    @rule(which=st.integers(0, 20), how=st.sampled_from([cut, flip, exchange]))
    def damage(self, which: int, how: Callable[[Path], None]) -> None:
        found = files(self.root)
        if len(found) > 1:
            victim = found[which % len(found)]
            if how is not exchange or len(files(victim.parents[1])) > 1:
                how(victim)

    def teardown(self) -> None:
        if hasattr(self, "scratch"):
            self.scratch.cleanup()


Shared.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestShared = Shared.TestCase

WRITER = """
import sys
from pathlib import Path
from tests.jaxllm.kv.tiers.disk.test_folder import *
folder = DiskFolder(Path(sys.argv[1]), LAYOUT, 40 * FILE)
print("ready", flush=True)
number = 0
while True:
    try:
        put(folder, number % 60, number % 3)
    except FolderFullError:
        pass  # the other one evicts
    number += 1
"""


def test_writers_that_are_killed_leave_nothing_torn(tmp_path: Path) -> None:
    """Two at a time, whose limit makes them evict."""
    for _ in range(2):
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        writers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
        for each in writers:
            assert each.stdout is not None
            each.stdout.readline()
        time.sleep(0.1)
        for each in writers:
            each.kill()
            each.communicate()
        folder = DiskFolder(tmp_path, LAYOUT, 40 * FILE)
        assert len(folder)
        for number in range(60):
            for part in range(3):
                if folder.has(digest(number), part):
                    assert np.array_equal(get(folder, number, part), content(number, part))
