"""Files and batches, by OpenAI's own client."""

import io
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types import Batch, FileObject

from jaxllm.errors import ConfigError, QueueFullError
from jaxllm.serving.openai.files.store import FileStore
from jaxllm.serving.openai.protocol.files import FileObject as OurFile
from tests.serving.openai.files.conftest import KEYS
from tests.serving.server_process import SMALL, ServerProcess, running


def line(name: str, **body: Any) -> str:
    body = {"prompt": "Once upon a time", "max_tokens": 4, **body}
    return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body})


def upload(client: OpenAI, *texts: str, **more: Any) -> FileObject:
    return client.files.create(file=("in.jsonl", "\n".join(texts).encode()), purpose="batch", **more)


def begin(client: OpenAI, file: FileObject, **more: Any) -> Batch:
    asked: dict[str, Any] = {"endpoint": "/v1/completions", "completion_window": "24h", **more}
    return client.batches.create(input_file_id=file.id, **asked)


def wait(client: OpenAI, batch: Batch, *, begun: bool = False) -> Batch:
    deadline = time.monotonic() + 120
    while True:
        batch = client.batches.retrieve(batch.id)
        if batch.status not in ("validating", "in_progress", "finalizing", "cancelling"):
            return batch
        if begun and batch.request_counts is not None and batch.request_counts.completed:
            return batch
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)


def answers(client: OpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    found = [json.loads(text) for text in client.files.content(file_id).text.splitlines()]
    return {each["custom_id"]: each for each in found}


def test_a_file(client: OpenAI) -> None:
    file = upload(client, line("a"), expires_after={"anchor": "created_at", "seconds": 3600})
    assert (file.filename, file.purpose, file.status, file.bytes) == ("in.jsonl", "batch", "processed", len(line("a")))
    assert file.expires_at == file.created_at + 3600
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).text == line("a")
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError) as caught:
        client.files.retrieve(file.id)
    assert caught.value.code == "file_not_found"


def test_lists_are_paged(client: OpenAI) -> None:
    files = [upload(client, line(str(index))) for index in range(5)]
    assert [file.id for file in client.files.list(limit=2)] == [file.id for file in files[::-1]]
    first = client.files.list(limit=2, order="asc")
    assert ([file.id for file in first.data], first.has_more) == ([file.id for file in files[:2]], True)
    assert not client.files.list(purpose="batch_output").data
    with pytest.raises(openai.BadRequestError):
        client.files.list(after="file-nobody")
    with pytest.raises(openai.BadRequestError):
        client.files.list(limit=0)


def test_files_and_batches_are_their_owners(clients: tuple[OpenAI, OpenAI]) -> None:
    mine, theirs = clients
    file = upload(mine, line("a"))
    batch = wait(mine, begin(mine, file))
    assert batch.output_file_id is not None
    assert not theirs.files.list().data
    assert not theirs.batches.list().data
    for call in (
        lambda: theirs.files.retrieve(file.id),
        lambda: theirs.files.content(file.id),
        lambda: theirs.files.content(batch.output_file_id or ""),
        lambda: theirs.files.delete(file.id),
        lambda: begin(theirs, file),
        lambda: theirs.batches.retrieve(batch.id),
        lambda: theirs.batches.cancel(batch.id),
    ):
        with pytest.raises(openai.NotFoundError):
            call()
    assert mine.files.retrieve(file.id) == file


def test_uploads_are_bounded(client: OpenAI, server: ServerProcess) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        upload(client, "x" * 300_000)
    assert (caught.value.status_code, "--max-file-size" in str(caught.value)) == (413, True)
    for _ in range(2):
        upload(client, "x" * 140_000)
    with pytest.raises(openai.APIStatusError, match="--max-stored-file-bytes"):
        upload(client, "x" * 140_000)
    # A body of unknown length, and a client that leaves in the middle of its upload.
    headers = {"Authorization": f"Bearer {KEYS[0]}", "Content-Type": "multipart/form-data; boundary=b"}
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'

    def leave() -> Any:
        yield part + b"x" * 50_000
        raise InterruptedError

    for _ in range(8):
        with pytest.raises(InterruptedError):
            httpx.post(f"{server.url}/v1/files", headers=headers, content=leave())

    def endless() -> Any:
        yield part
        for _ in range(100):
            yield b"x" * 10_000

    answer = httpx.post(f"{server.url}/v1/files", headers=headers, content=endless())
    assert answer.status_code in (400, 413)
    assert len(client.files.list().data) == 2
    deadline = time.monotonic() + 60
    while True:
        # Room that nobody uses comes back; as to when, the server must notice who has left.
        try:
            upload(client, "x" * 90_000)
            break
        except openai.APIStatusError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    for _ in range(3):
        upload(client, "x")
    with pytest.raises(openai.APIStatusError, match="--max-stored-files"):
        upload(client, "x")


def test_one_owner_cannot_fill_the_storage(clients: tuple[OpenAI, OpenAI]) -> None:
    mine, theirs = clients
    for size in (140_000, 140_000, 1, 1, 1, 1):
        upload(mine, "x" * size)
    for action in (lambda: upload(mine, "x"), lambda: begin(mine, mine.files.list().data[0])):
        with pytest.raises(openai.BadRequestError, match="--max-stored-file-share") as caught:
            action()
        assert caught.value.code == "storage_limit_exceeded"
    mine.files.delete(mine.files.list().data[0].id)
    with pytest.raises(openai.BadRequestError, match="400000 bytes"):
        upload(mine, "x" * 140_000)
    # All that is left is the other's.
    for size in (140_000, 140_000, 1, 1, 1, 1):
        upload(theirs, "x" * size)


@pytest.mark.parametrize("name", ["file", "file/folder", "used"])
def test_a_wrong_folder_fails_before_the_model_is_loaded(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    store = FileStore(str(tmp_path / "used"), max_files=1, max_bytes=1, lifetime=1)
    with running(tmp_path / "log", "demo", *SMALL, f"--files-dir={tmp_path / name}", wait=False) as server:
        assert server.end() == 2
        assert "files_dir" in server.log
        assert "Loading" not in server.log
        assert "Traceback" not in server.log
    store.close()


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (b"", None),
        (b"--b\r\n", None),
        (b"not a form at all", None),
        (b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b--\r\n', "file"),
        (b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nx\r\n--b--\r\n', "purpose"),
        (b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n' + b"x" * 5000 + b"\r\n--b--\r\n", "purpose"),
        (b"--b\r\n" + b"X" * 9000 + b": y\r\n\r\nx\r\n--b--\r\n", None),
        (b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nx', None),
        (b'--b\r\nContent-Disposition: form-data; name=""\r\n\r\n\r\n' * 40 + b"--b--\r\n", None),
    ],
)
def test_broken_forms(client: OpenAI, server: ServerProcess, content: bytes, param: str | None) -> None:
    headers = {"Authorization": f"Bearer {KEYS[0]}", "Content-Type": "multipart/form-data; boundary=b"}
    answer = httpx.post(f"{server.url}/v1/files", headers=headers, content=content)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    wrong = httpx.post(f"{server.url}/v1/files", headers={**headers, "Content-Type": "text/plain"}, content=content)
    assert wrong.status_code == 415
    assert not client.files.list().data


def test_a_batch(client: OpenAI) -> None:
    names = [f"request {index}" for index in range(20)]
    body = [line(name, seed=index) for index, name in enumerate(names)]
    file = upload(client, *body, line("too long", max_tokens=10**6), line("wrong", temperature=-1))
    asked = begin(client, file, metadata={"who": "me"})
    assert asked.status in ("validating", "in_progress")
    batch = wait(client, asked)
    assert (batch.status, batch.errors, batch.metadata, batch.model) == ("completed", None, {"who": "me"}, "demo")
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"total": 22, "completed": 20, "failed": 2}
    found, failed = answers(client, batch.output_file_id), answers(client, batch.error_file_id)
    assert (set(found), set(failed)) == (set(names), {"too long", "wrong"})
    for index, name in enumerate(names):
        alone = client.completions.create(model="demo", prompt="Once upon a time", max_tokens=4, seed=index)
        assert found[name]["response"]["body"]["choices"][0]["text"] == alone.choices[0].text
    assert {each["response"]["status_code"] for each in failed.values()} == {400}
    assert batch.usage is not None
    assert batch.usage.output_tokens == sum(
        each["response"]["body"]["usage"]["completion_tokens"] for each in found.values()
    )
    file_of_answers = client.files.retrieve(batch.output_file_id or "")
    assert (file_of_answers.purpose, file_of_answers.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert [each.id for each in client.batches.list(limit=1).data] == [batch.id]
    with pytest.raises(openai.BadRequestError, match="has already ended"):
        client.batches.cancel(batch.id)


def test_a_batch_with_wrong_lines_runs_nothing(client: OpenAI) -> None:
    file = upload(client, line("a"), "{", line("a"), json.dumps({**json.loads(line("b")), "url": "/v1/embeddings"}))
    batch = wait(client, begin(client, file))
    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("failed", None, None)
    assert batch.errors is not None
    assert [error.line for error in batch.errors.data or ()] == [2, 3, 4]
    assert wait(client, begin(client, upload(client, ""))).status == "failed"


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"endpoint": "/v1/models"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "900d"}, "completion_window"),
        ({"metadata": {"a": "b" * 600}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
    ],
)
def test_wrong_batches(client: OpenAI, changes: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        begin(client, upload(client, line("a")), **changes)
    assert caught.value.param == param


def test_a_batch_is_cancelled_and_others_go_on(clients: tuple[OpenAI, OpenAI]) -> None:
    mine, theirs = clients
    long = {"max_tokens": 400, "ignore_eos": True}
    batch = begin(mine, upload(mine, line("short"), *(line(str(index), **long) for index in range(300))))
    wait(mine, batch, begun=True)
    # Half of the slots are left to those who wait for their answers.
    assert theirs.completions.create(model="demo", prompt="hello", max_tokens=2).choices
    other = wait(theirs, begin(theirs, upload(theirs, line("a"))))
    assert other.status == "completed"
    assert mine.batches.cancel(batch.id).status == "cancelling"
    batch = wait(mine, batch)
    assert (batch.status, batch.request_counts is not None) == ("cancelled", True)
    assert "short" in answers(mine, batch.output_file_id)


def test_a_batch_needs_no_client(server: ServerProcess) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key=KEYS[0]) as client:
        batch = begin(client, upload(client, *(line(str(index)) for index in range(8))))
    with OpenAI(base_url=f"{server.url}/v1", api_key=KEYS[0]) as client:
        assert wait(client, batch).status == "completed"
        for file in client.files.list():
            client.files.delete(file.id)


def test_batches_go_on_after_a_restart(tmp_path: Path) -> None:
    flags = (*SMALL, f"--files-dir={tmp_path / 'files'}", "--shutdown-timeout=1")
    with (
        running(tmp_path / "log", "demo", *flags) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="any") as client,
    ):
        long = {"max_tokens": 100, "ignore_eos": True}
        batch = begin(client, upload(client, *(line(str(index), **long) for index in range(40))))
        wait(client, batch, begun=True)
        with pytest.raises(ConfigError, match="another server"):
            FileStore(str(tmp_path / "files"), max_files=1, max_bytes=1, lifetime=1)
        server.process.kill()
    # What an upload had written by then.
    (tmp_path / "files" / "file-000").write_bytes(b"x")
    with (
        running(tmp_path / "log2", "demo", *flags) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="any") as client,
    ):
        batch = wait(client, batch)
        assert batch.status == "completed"
        assert set(answers(client, batch.output_file_id)) == {str(index) for index in range(40)}
        assert not (tmp_path / "files" / "file-000").exists()


def test_files_expire(tmp_path: Path) -> None:
    now = 1000.0
    store = FileStore(None, max_files=1, max_bytes=10, lifetime=60, clock=lambda: now)
    name = store.new_id("me")
    store.reserve("me", 8)
    store.path(name).write_bytes(io.BytesIO(b"12345678").read())
    store.add("me", OurFile(id=name, bytes=8, created_at=1000, expires_at=1060, filename="f", purpose="batch"))
    with pytest.raises(QueueFullError):
        store.new_id("other")
    with pytest.raises(QueueFullError):
        store.reserve("other", 3)
    assert (store.get(name, "me") is not None, store.get(name, "other")) == (True, None)
    now = 1060.0
    assert store.get(name, "me") is None
    assert (store.num_bytes, store.path(name).exists()) == (0, False)
    folder = store.folder
    store.close()
    assert not folder.exists()


def test_a_file_that_is_deleted_while_it_is_read(client: OpenAI, server: ServerProcess) -> None:
    """Readers get all of it, or hear that there is none."""
    data = line("x") * 900
    with httpx.Client(base_url=str(client.base_url), headers={"Authorization": f"Bearer {client.api_key}"}) as http:

        def read(file_id: str) -> httpx.Response:
            return http.get(f"files/{file_id}/content", timeout=60)

        for _ in range(20):
            file = client.files.create(file=("ü x.jsonl", data.encode()), purpose="batch")
            with ThreadPoolExecutor(9) as pool:
                readers = [pool.submit(read, file.id) for _ in range(4)]
                deleted = pool.submit(client.files.delete, file.id)
                readers += [pool.submit(read, file.id) for _ in range(4)]
                answers = [reader.result() for reader in readers]
                assert deleted.result().deleted
            assert {answer.status_code for answer in answers} <= {200, 404}
            assert all(answer.text == data for answer in answers if answer.status_code == 200)
    assert "Traceback" not in server.log
