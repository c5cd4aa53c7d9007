"""Several API server processes before one engine: nobody notices, and they end together."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.serving.conftest import left_in
from tests.e2e.serving.metrics import Metrics
from tests.serving.server_process import LONG, SMALL, ServerProcess, Stream, running, streams

FLAGS = ("demo", *SMALL, "--api-server-count", "2")
BODY = {"prompt": "Once upon a time", "max_tokens": 40, "ignore_eos": True, "temperature": 0}
SECONDS = 120.0
LABELS = 'engine="0",model_name="demo"'


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def children(server: ServerProcess, module: str) -> list[psutil.Process]:
    """The server's processes that run this module."""
    every = psutil.Process(server.process.pid).children()
    return [process for process in every if f"jaxllm.serving.{module}" in _command(process)]


def _command(process: psutil.Process) -> list[str]:
    """The command line of a process; none of one that has just ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def told(client: httpx.Client, sample: str) -> bool:
    """Whether the metrics say this."""
    return sample in client.get("/metrics").text


def connections(process: psutil.Process) -> int:
    return sum(each.status == psutil.CONN_ESTABLISHED for each in process.net_connections("tcp"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The TMPDIR of the server."""
    return tmp_path_factory.mktemp("tmp")


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One for all tests that leave it with an engine, and the one that ends it."""
    log = tmp_path_factory.mktemp("server") / "log"
    with running(
        log, *FLAGS, "--step-timeout", "6", "--max-restarts", "9", environment={"TMPDIR": str(folder)}
    ) as made:
        yield made


def test_together_they_are_one_server(server: ServerProcess) -> None:
    workers = children(server, "server.workers")
    assert len(workers) == 2
    clients = list[httpx.Client]()
    texts = list[str]()
    # Which process gets a connection is the system's choice.
    while not all(connections(worker) for worker in workers):
        assert len(clients) < 200
        client = httpx.Client(base_url=server.url, timeout=SECONDS)
        clients.append(client)
        answer = client.post("/v1/completions", json=BODY)
        assert answer.status_code == 200, answer.text
        texts.append(answer.json()["choices"][0]["text"])
    assert len(set(texts)) == 1
    tokens = 40 * len(texts)
    for client in clients:
        until(partial(told, client, f"generation_tokens_total{{{LABELS}}} {tokens:.1f}"))
        assert client.post("/reset_prefix_cache").status_code == 200
        refused = client.post("/v1/responses", json={"input": "hello", "background": True})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "background")
    for client in clients:
        client.close()


def metrics_of_all(server: ServerProcess) -> list[Metrics]:
    """As several connections get them, which reach different processes."""
    return [Metrics.read(server.url) for _ in range(4)]


def test_one_that_dies_is_started_again_alone(server: ServerProcess) -> None:
    """The others and the engine go on, its requests end, and no counter goes back."""
    (engine,) = children(server, "ipc.engine_process")
    for times in (1, 2):
        workers = children(server, "server.workers")
        assert len(workers) == 2
        with ExitStack() as stack:
            clients = [stack.enter_context(httpx.Client(base_url=server.url, timeout=SECONDS)) for _ in range(6)]
            long = [Stream(clients[0], {**LONG, "n": 4})]
            # An engine that stands still ends none of them before one of its API servers is killed.
            engine.suspend()
            stack.callback(engine.resume)
            long += [Stream(client, {**LONG, "n": 1}, wait=False) for client in clients[1:]]
            until(lambda: clients[0].get("/load").json() == {"server_load": len(long)})  # noqa: B023
            # What is published is at most some tenths of a second old.
            time.sleep(0.5)
            before = metrics_of_all(server)
            victim = max(workers, key=connections)
            victim.kill()
            engine.resume()
            for stream in long:
                events = stream.rest()
                assert stream.cut_off or events[-1] == b"[DONE]"
            assert any(stream.cut_off for stream in long)
        until(lambda: httpx.get(f"{server.url}/load").json() == {"server_load": 0})
        Metrics.wait_until_idle(server.url)
        until(lambda: len(children(server, "server.workers")) == 2)
        until(lambda: all(each["api_server_restarts_total"] == times for each in metrics_of_all(server)))  # noqa: B023
        after = metrics_of_all(server)
        for name in before[0].values:
            if name.endswith(("_total", "_count", "_sum")):
                assert min(each[name] for each in after) >= max(each[name] for each in before) - 1e-9, name
    for _ in range(8):
        answer = httpx.post(f"{server.url}/v1/completions", json=BODY, timeout=SECONDS)
        assert answer.status_code == 200, answer.text
    assert children(server, "ipc.engine_process") == [engine]


@pytest.mark.parametrize("end", ["killed", "hangs"])
def test_the_engine_is_restarted_for_all(server: ServerProcess, end: str) -> None:
    workers = children(server, "server.workers")
    clients = list[httpx.Client]()
    while not all(connections(worker) for worker in workers):
        clients.append(httpx.Client(base_url=server.url, timeout=SECONDS))
        assert clients[-1].get("/health").status_code == 200
    before = Metrics.read(server.url)
    long = streams(*clients, n=8)
    (engine,) = children(server, "ipc.engine_process")
    if end == "killed":
        engine.kill()
    else:
        engine.suspend()
    for stream in long:
        assert stream.rest()[-1] == b"[DONE]"
    for client in clients:
        until(lambda: client.get("/ready").status_code == 200)  # noqa: B023
        assert client.post("/v1/completions", json=BODY).status_code == 200
        client.close()
    until(lambda: Metrics.read(server.url)["engine_restarts_total"] == before["engine_restarts_total"] + 1)
    until(lambda: Metrics.read(server.url)["generation_tokens_total"] > before["generation_tokens_total"])
    assert children(server, "server.workers") == workers


def test_one_that_is_stopped_is_noticed(server: ServerProcess) -> None:
    """Its streams are cut off, and it is started again; nobody else notices."""
    with ExitStack() as stack:
        clients = [stack.enter_context(httpx.Client(base_url=server.url, timeout=SECONDS)) for _ in range(4)]
        long = streams(*clients, n=8)
        before = Metrics.read(server.url)
        victim = max(children(server, "server.workers"), key=connections)
        victim.suspend()
        assert httpx.post(f"{server.url}/v1/completions", json=BODY, timeout=SECONDS).status_code == 200
        for stream in long:
            assert stream.rest()[-1:] == [b"[DONE]"] or stream.cut_off
        assert any(stream.cut_off for stream in long)
    restarts = before["api_server_restarts_total"] + 1
    until(lambda: Metrics.read(server.url)["api_server_restarts_total"] == restarts)
    assert "(it hangs: its event loop has not responded for" in server.log
    psutil.wait_procs([victim], timeout=20)
    assert victim not in children(server, "server.workers")
    until(lambda: len(children(server, "server.workers")) == 2)


def test_they_end_together(server: ServerProcess, folder: Path) -> None:
    workers = children(server, "server.workers")
    (engine,) = children(server, "ipc.engine_process")
    with ExitStack() as stack:
        clients = [stack.enter_context(httpx.Client(base_url=server.url, timeout=SECONDS)) for _ in range(4)]
        long = streams(*clients, n=8)
        server.signal(signal.SIGINT)
        for stream in long:
            events = stream.rest()
            assert events[-1] == b"[DONE]"
            assert json.loads(events[-2])["choices"][0]["finish_reason"] == "length"
        assert server.end() == 0, server.log
    psutil.wait_procs([*workers, engine], timeout=20)
    assert not any(process.is_running() for process in (*workers, engine))
    assert "Traceback" not in server.log
    assert server.log.count("serves demo") == 1
    assert left_in(folder) == []


def test_too_many_that_die_end_all(tmp_path: Path, scratch: Path) -> None:
    flags = (*FLAGS, "--max-restarts", "1")
    with running(tmp_path / "log", *flags, environment={"TMPDIR": str(scratch)}) as server:
        (engine,) = children(server, "ipc.engine_process")
        workers = children(server, "server.workers")
        for worker in workers:
            worker.kill()
        assert server.end() == 1
        last = server.log.splitlines()[-1]
        assert "an API server process ended unexpectedly (killed by SIGKILL" in last
        assert "1 restarts within 600 s" in last
        psutil.wait_procs([*workers, engine], timeout=20)
        assert not any(process.is_running() for process in (*workers, engine))
        assert "Traceback" not in server.log


def test_the_engine_dies_for_good(tmp_path: Path) -> None:
    with running(tmp_path / "log", *FLAGS, "--max-restarts", "0") as server:
        workers = children(server, "server.workers")
        with httpx.Client(base_url=server.url, timeout=SECONDS) as client:
            stream = Stream(client, LONG)
            (engine,) = children(server, "ipc.engine_process")
            engine.kill()
            assert b"killed by SIGKILL" in stream.rest()[-1]
        assert server.end() == 1, server.log
        assert server.log.splitlines()[-1].startswith("jaxllm: the engine process died: killed by SIGKILL")
        psutil.wait_procs(workers, timeout=20)
        assert not any(worker.is_running() for worker in workers)
        assert "Traceback" not in server.log


def test_the_supervisor_is_killed(tmp_path: Path, scratch: Path) -> None:
    """Nothing of it is left."""
    with running(tmp_path / "log", *FLAGS, environment={"TMPDIR": str(scratch)}) as server:
        everybody = [*children(server, "server.workers"), *children(server, "ipc.engine_process")]
        assert len(everybody) == 3
        server.process.kill()
        assert server.end() == -signal.SIGKILL
        psutil.wait_procs(everybody, timeout=20)
        assert not any(process.is_running() for process in everybody)
        assert left_in(scratch) == []


def test_an_error_at_the_start_is_the_only_line(tmp_path: Path) -> None:
    with running(tmp_path / "log", "./absent", *SMALL, "--api-server-count", "2", wait=False) as server:
        assert server.end() == 2
        assert "absent" in server.log
        assert "Traceback" not in server.log
