"""What is stored on disk is found again; a disk that takes nothing harms nobody."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.errors import ConfigError, EngineError
from jaxllm.requests.owners import Owner
from jaxllm.serving.openai.protocol.response_items import FunctionCallOutput, InputPart, Item, MessageItem
from jaxllm.serving.openai.protocol.responses import ResponsesRequest
from jaxllm.serving.openai.responses.database import NAME, ResponseDatabase
from jaxllm.serving.openai.responses.replay import Replay, Told
from jaxllm.serving.openai.responses.store import Asked, EventLog, Progress, ResponseStore, Stored, Turn
from jaxllm.serving.text.outputs import CompletionOutput, RequestOutput
from tests.serving.openai.responses.test_store import message, response


def items(name: str) -> list[Item]:
    parts = [InputPart(type="input_text", text="ü" * 3, template_fields={"own": [1, None]})]
    return [
        MessageItem(type="message", role="user", content=parts, id=f"{name}_a", template_fields={"x": 1}),
        FunctionCallOutput(type="function_call_output", call_id="c", output="\0", id=f"{name}_b"),
        message(f"{name}_c", 5),
    ]


def shown(store: ResponseStore, names: list[tuple[str, str]]) -> list[Any]:
    found: list[Any] = []
    for owner, name in names:
        stored = store.get(owner, name)
        if stored is None:
            found.append(None)
            continue
        log = None if stored.log is None else (stored.log.events, stored.log.ended)
        assert stored.runs or stored.asked is None
        found.append((stored.response, stored.turn.items(), log, stored.asked, stored.progress, stored.num_events))
    return [*found, len(store)]


def modes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


STEP = st.tuples(st.sampled_from(["add", "run", "tell", "end", "delete"]), st.integers(0, 9), st.integers(0, 1))


@settings(max_examples=25, deadline=None)
@given(steps=st.lists(STEP, max_size=25), restarts=st.sets(st.integers(0, 25)))
def test_another_server_finds_what_was_there(steps: list[tuple[str, int, int]], restarts: set[int]) -> None:
    async def run(folder: Path) -> None:
        database = ResponseDatabase(folder)
        store = ResponseStore(5, 20_000, database)
        names: list[tuple[str, str]] = []
        for index, (what, choice, who) in enumerate(steps):
            owner = f"owner {who}"
            known = [each for each in names if store.get(*each) is not None]
            chosen = store.get(*known[choice % len(known)]) if known else None
            if what in ("add", "run"):
                before = chosen.turn if chosen is not None and chosen.owner == owner and not chosen.runs else None
                runs = what == "run"
                made = Stored(response(f"resp_{index}", running=runs), Turn(before, items(f"i{index}")), owner)
                if runs:
                    made.log = EventLog()
                    body = ResponsesRequest(input="x", background=True, seed=3, instructions=f"{index}")
                    made.asked = Asked(body=body, owner=Owner(owner, 2.0), request_id="r")
                store.put(made)
                names.append((owner, made.response.id))
            elif chosen is not None and what == "tell" and chosen.runs:
                chosen.progress = Progress(num_tokens=index, num_characters=3, digest="d")
                store.tell(chosen, [b"%d" % index, b"\0"])
            elif chosen is not None and what == "end" and chosen.runs:
                chosen.response.status = "completed"
                chosen.turn.made = items(f"m{index}")
                store.put(chosen)
                store.tell(chosen, [b"last"], last=True)
            elif chosen is not None and what == "delete":
                store.delete(chosen)
            if index in restarts:
                await database.written()
                wanted = shown(store, names)
                database.close()
                database = ResponseDatabase(folder)
                store = ResponseStore(5, 20_000, database, database.load())
                assert shown(store, names) == wanted
        database.close()

    with TemporaryDirectory() as name:
        asyncio.run(run(Path(name)))


async def test_readers_see_what_is_written(tmp_path: Path) -> None:
    database = ResponseDatabase(tmp_path)
    stored = Stored(response("r", running=True), Turn(None, []), log=EventLog())
    store = ResponseStore(9, 9000, database)
    store.put(stored)
    store.tell(stored, [b"1"])
    store.tell(stored, [b"2"], last=True)
    assert stored.log is not None
    assert (stored.log.events, stored.log.ended) == ([], False)
    await database.written()
    assert (stored.log.events, stored.log.ended) == ([b"1", b"2"], True)
    database.close()
    assert modes(tmp_path) == {NAME: 0o600, "lock": 0o600}


async def test_a_full_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    database = ResponseDatabase(tmp_path)
    store = ResponseStore(99, 10**7, database)
    (pages,) = database._connection.execute("pragma page_count").fetchone()
    database._connection.execute(f"pragma max_page_count = {pages}")
    stored = Stored(response("big", running=True), Turn(None, [message("m", 100_000)]), log=EventLog())
    store.put(stored)
    store.tell(stored, [b"1"], last=True)
    with pytest.raises(OSError, match="full") as caught:
        await database.written()
    assert caught.value.errno == 28
    assert stored.log is not None
    assert stored.log.events == [b"1"]
    assert store.get("", "big") is stored
    assert sum("cannot write" in record.message for record in caplog.records) == 1
    # Meanwhile nobody waits for it.
    stored.log = EventLog()
    store.tell(stored, [b"2"], last=True)
    assert (stored.log.events, stored.log.ended) == ([b"2"], True)
    with pytest.raises(OSError, match="full"):
        await database.written()
    # It is tried again, with what came later.
    database._connection.execute("pragma max_page_count = 10000")
    store.put(Stored(response("later"), Turn(None, [])))
    database._begin()
    while database._failing is not None:  # noqa: ASYNC110  (nothing tells of it)
        await asyncio.sleep(0.01)
    store.put(Stored(response("lost"), Turn(Turn(None, [], name="unwritten", num_users=1), [])))
    await database.written()
    database.close()
    with closing(ResponseDatabase(tmp_path)) as database:
        assert [each.response.id for each in database.load()] == ["big", "later"]
    assert "part of the conversation of lost is missing" in caplog.text


def test_files_that_are_no_database(tmp_path: Path) -> None:
    ResponseDatabase(tmp_path).close()
    with sqlite3.connect(tmp_path / NAME) as connection:
        connection.execute("pragma user_version = 9")
    connection.close()
    with pytest.raises(ConfigError, match="version 9 where this server reads 1"):
        ResponseDatabase(tmp_path)
    (tmp_path / NAME).write_bytes(b"no database" * 1000)
    with pytest.raises(ConfigError, match=r"store_dir=.*not a database; move the file away"):
        ResponseDatabase(tmp_path)
    (tmp_path / NAME).unlink()
    database = ResponseDatabase(tmp_path)
    with pytest.raises(ConfigError, match="another server"):
        ResponseDatabase(tmp_path)
    database._connection.execute("insert into turn values ('', 't', null, '[]', '[]')")
    database._connection.execute("insert into response values ('', 'r', 1, 't', 0, '{}', null, '{}')")
    with pytest.raises(ConfigError, match="damaged"):
        database.load()
    database.close()


CHUNKS = st.lists(st.tuples(st.text(max_size=4), st.integers(0, 3)), max_size=8)


def outputs(chunks: list[tuple[str, int]], cuts: Callable[[int], bool]) -> list[RequestOutput]:
    """The chunks as outputs, those next to each other together where nothing cuts them."""
    made: list[CompletionOutput] = []
    number = 0
    for index, (text, count) in enumerate(chunks):
        ids = list(range(number, number + count))
        number += count
        if index and not cuts(index):
            made[-1].text += text
            made[-1].token_ids += ids
        else:
            made.append(CompletionOutput(0, text, ids))
    return [RequestOutput("r", None, [], [each], finished=False) for each in made]


@given(chunks=CHUNKS, told=st.integers(0, 8), cuts=st.sets(st.integers(0, 8)), other=st.sets(st.integers(0, 8)))
def test_a_replay_leaves_out_what_was_told(
    chunks: list[tuple[str, int]], told: int, cuts: set[int], other: set[int]
) -> None:
    counted, progress = Told(), Progress()
    begun = outputs(chunks, cuts.__contains__)[:told]
    for each in begun:
        progress = counted.add(each)
    replay = Replay(progress, Told())
    rest: list[CompletionOutput] = []
    for each in outputs(chunks, other.__contains__):
        if replay.over:
            rest += each.outputs
        else:
            _, after = replay.divide(each)
            rest += after.outputs
    whole = [(each.text, each.token_ids) for output in begun for each in output.outputs]
    whole += [(each.text, each.token_ids) for each in rest]
    assert "".join(text for text, _ in whole) == "".join(text for text, _ in chunks)
    assert [token for _, ids in whole for token in ids] == list(range(sum(count for _, count in chunks)))


def test_another_reply_is_noticed() -> None:
    told = Told().add(RequestOutput("r", None, [], [CompletionOutput(0, "abc", [1])], finished=False))
    for text, reason in (("abd", None), ("ab", "stop")):
        output = RequestOutput("r", None, [], [CompletionOutput(0, text, [1], finish_reason=reason)], finished=False)
        with pytest.raises(EngineError, match="another reply"):
            Replay(told, Told()).divide(output)
    assert msgspec.json.decode(msgspec.json.encode(told), type=Progress) == told
