"""Stored responses on disk, in SQLite: written off the event loop, in order, found again by another server."""

import asyncio
import copy
import errno
import logging
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from jaxllm.errors import ConfigError
from jaxllm.serving.openai.files.private import open_private
from jaxllm.serving.openai.files.store import lock_folder
from jaxllm.serving.openai.protocol.response_answers import ModelResponse
from jaxllm.serving.openai.protocol.response_items import ITEM_KINDS, Item
from jaxllm.serving.openai.responses.store import Asked, EventLog, Progress, Stored, Turn

logger = logging.getLogger(__name__)

NAME: Final = "responses.db"
_VERSION: Final = 1
_TABLES: Final = """
create table turn (owner text, name text, before text, given blob, made blob, primary key (owner, name)) without rowid;
create table response (owner text, name text, place integer, turn text, logs integer, body blob, asked blob,
    progress blob, primary key (owner, name)) without rowid;
create table event (owner text, name text, number integer, data blob, primary key (owner, name, number)) without rowid;
"""
_RETRY_SECONDS: Final = 5.0
_MOST_WAITING: Final = 32 * 2**20
"""Bytes that wait for a disk that takes nothing; beyond them only deletions wait."""
_KIND_NAMES: Final = {kind: name for name, kind in ITEM_KINDS.items()}


@dataclass(frozen=True)
class _Write:
    """A statement, and what is called once it was tried."""

    statement: str
    values: tuple[Any, ...] = ()
    then: Callable[[], None] | None = None

    @property
    def deletes(self) -> bool:
        """Whether it must not be lost: what a client deleted must not come back."""
        return self.statement.startswith("delete")

    @property
    def num_bytes(self) -> int:
        """Of its values, about."""
        return sum(len(each) for each in self.values if isinstance(each, str | bytes))


class ResponseDatabase:
    """The responses of a folder. Belongs to one event loop; statements run in a thread, those of a tick together.

    A process that is killed loses nothing that was reported as written, a machine that loses its power at most the
    last moments. A disk that takes nothing is tried again; meanwhile the server goes on with what is in memory.
    """

    def __init__(self, folder: Path) -> None:
        """Raises `ConfigError` for a folder that cannot be used, and a database that is damaged or newer."""
        self._lock = lock_folder(folder, "store_dir")
        self._path = folder / NAME
        self._thread = ThreadPoolExecutor(1, "responses")
        self._waiting: list[_Write] = []
        self._writing = self._closed = False
        self._failing: OSError | None = None
        self._place = 0
        try:
            # SQLite gives its other files the permissions of this one.
            open_private(self._path, "ab").close()
            self._connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            self._lock.close()
            raise ConfigError(f"store_dir={str(folder)!r}: {error}; give a writable folder") from None
        try:
            self._open()
        except sqlite3.Error as error:
            self._connection.close()
            self._lock.close()
            raise ConfigError(f"store_dir={str(folder)!r}: {NAME}: {error}; move the file away") from None

    def _open(self) -> None:
        run = self._connection.execute
        run("pragma journal_mode = wal")
        run("pragma synchronous = normal")
        run("pragma secure_delete = fast")
        run(f"pragma journal_size_limit = {2**24}")
        (found,) = run("pragma user_version").fetchone()
        if found == 0:
            self._connection.executescript(f"begin; {_TABLES} pragma user_version = {_VERSION}; commit;")
        elif found != _VERSION:
            raise sqlite3.DatabaseError(f"has version {found} where this server reads {_VERSION}")

    # Reading

    def load(self) -> list[Stored]:
        """All responses, those that were stored first come first. Raises `ConfigError` for a damaged database.

        Those with a turn that the disk did not take are left out.
        """
        try:
            return self._load()
        except (sqlite3.Error, msgspec.DecodeError, KeyError) as error:
            raise ConfigError(f"{str(self._path)!r} is damaged: {error}; move it away") from None

    def _load(self) -> list[Stored]:
        run = self._connection.execute
        rows = {(owner, name): rest for owner, name, *rest in run("select owner, name, before, given, made from turn")}
        turns: dict[tuple[str, str], Turn] = {}

        def turn_of(owner: str, name: str) -> Turn | None:
            path: list[str] = []
            at: str | None = name
            while at is not None and (owner, at) not in turns:
                if (owner, at) not in rows:
                    return None
                path.append(at)
                at = rows[owner, at][0]
            for each in reversed(path):
                before, given, made = rows[owner, each]
                known = None if before is None else turns[owner, before]
                turns[owner, each] = Turn(known, _unpacked(given), _unpacked(made), name=each)
            return turns[owner, name]

        found = []
        query = "select owner, name, place, turn, logs, body, asked, progress from response order by place"
        for owner, name, place, turn, logs, body, asked, progress in run(query).fetchall():
            self._place = max(self._place, place)
            whole = turn_of(owner, turn)
            if whole is None:
                logger.warning("%s: part of the conversation of %s is missing", self._path, name)
                continue
            stored = Stored(msgspec.json.decode(body, type=ModelResponse), whole, owner)
            if asked is not None:
                stored.asked = msgspec.json.decode(asked, type=Asked)
            stored.progress = msgspec.json.decode(progress, type=Progress)
            if logs:
                stored.log = EventLog()
                events = run("select data from event where owner = ? and name = ? order by number", (owner, name))
                stored.log.add([data for (data,) in events])
                stored.log.ended = not stored.runs
                stored.num_events = len(stored.log.events)
            found.append(stored)
        return found

    # Writing

    def keep(self, stored: Stored, turns: Sequence[Turn]) -> None:
        """Write a response and the turns that were not there, or replace them."""
        owner, self._place = stored.owner, self._place + 1
        for turn in turns:
            before = None if turn.before is None else turn.before.name
            self._write(
                "insert or replace into turn values (?, ?, ?, ?, ?)",
                (owner, turn.name, before, _packed(turn.given), _packed(turn.made)),
            )
        asked = msgspec.json.encode(stored.asked) if stored.runs and stored.asked is not None else None
        body, progress = msgspec.json.encode(stored.response), msgspec.json.encode(stored.progress)
        logs = int(stored.log is not None)
        self._write(
            "insert or replace into response values (?, ?, ?, ?, ?, ?, ?, ?)",
            (owner, stored.response.id, self._place, stored.turn.name, logs, body, asked, progress),
        )

    def forget(self, stored: Stored, turns: Sequence[Turn]) -> None:
        """Delete a response, its events, and the turns that no other response has."""
        key = (stored.owner, stored.response.id)
        self._write("delete from response where owner = ? and name = ?", key)
        self._write("delete from event where owner = ? and name = ?", key)
        for turn in turns:
            self._write("delete from turn where owner = ? and name = ?", (stored.owner, turn.name))

    def add_events(self, stored: Stored, first: int, events: Sequence[bytes], then: Callable[[], None]) -> None:
        """Write events, numbered from `first` on, and how far the reply is; then call `then`, whether or not it
        worked.
        """
        key = (stored.owner, stored.response.id)
        for number, data in enumerate(events, start=first):
            self._write("insert or replace into event values (?, ?, ?, ?)", (*key, number, data))
        progress = msgspec.json.encode(stored.progress)
        self._write("update response set progress = ? where owner = ? and name = ?", (progress, *key), then)

    async def written(self) -> None:
        """Wait until all is on the disk. Raises `OSError` if the disk does not take it, or has not lately."""
        self._check()
        done = asyncio.get_running_loop().create_future()

        def settle() -> None:
            if not done.done():
                done.set_result(None)

        self._write("select 1", (), settle)
        await done
        self._check()

    def _check(self) -> None:
        if self._failing is not None:
            # Raised again and again, it would keep the frames of all that it was raised for.
            raise copy.copy(self._failing)

    def close(self) -> None:
        """Write what waits, and let go of the file; what comes later is not written."""
        if self._closed:
            return
        self._closed = True
        self._thread.shutdown(wait=True)
        try:
            if self._waiting:
                self._run(self._waiting)
        except OSError as error:
            logger.warning("cannot write %s: %s", self._path, error)
        self._waiting = []
        self._connection.close()
        self._lock.close()

    def _write(self, statement: str, values: tuple[Any, ...], then: Callable[[], None] | None = None) -> None:
        if self._closed:
            if then is not None:
                then()
            return
        if self._failing is not None and then is not None:
            # Nobody waits for a disk that took nothing a moment ago.
            then()
            then = None
        self._waiting.append(_Write(statement, values, then))
        if not self._writing:
            self._writing = True
            # What comes in the same tick is one transaction.
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        if self._closed:
            return
        batch, self._waiting = self._waiting, []
        future = asyncio.get_running_loop().run_in_executor(self._thread, self._run, batch)
        future.add_done_callback(lambda done: self._wrote(batch, done.exception()))

    def _run(self, batch: Sequence[_Write]) -> None:
        """In the thread. Raises `OSError`."""
        try:
            self._connection.execute("begin")
            for each in batch:
                self._connection.execute(each.statement, each.values)
            self._connection.execute("commit")
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.rollback()
            full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
            raise OSError(errno.ENOSPC if full else errno.EIO, str(error)) from error

    def _wrote(self, batch: Sequence[_Write], error: BaseException | None) -> None:
        if error is not None and self._failing is None:
            logger.warning("cannot write %s, which is tried again: %s", self._path, error)
        self._failing = error if isinstance(error, OSError) else None
        for each in batch:
            if each.then is not None:
                each.then()
        if self._closed:
            return
        if error is not None:
            self._waiting = _still_wanted(batch) + self._waiting
            asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._begin)
        elif self._waiting:
            asyncio.get_running_loop().call_soon(self._begin)
        else:
            self._writing = False


def _still_wanted(batch: Sequence[_Write]) -> list[_Write]:
    """What is written once the disk takes it again."""
    fits = sum(each.num_bytes for each in batch) <= _MOST_WAITING
    return [_Write(each.statement, each.values) for each in batch if fits or each.deletes]


def _packed(items: Sequence[Item]) -> bytes:
    return msgspec.json.encode([(_KIND_NAMES[type(item)], item) for item in items])


def _unpacked(data: bytes) -> list[Item]:
    pairs = msgspec.json.decode(data, type=list[tuple[str, msgspec.Raw]])
    items: list[Any] = [msgspec.json.decode(raw, type=ITEM_KINDS[kind]) for kind, raw in pairs]
    return items
