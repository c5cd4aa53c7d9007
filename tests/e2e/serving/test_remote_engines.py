"""A server with engines of another host, which is another process here: joined, refused, killed, stopped, back."""

import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.ports import free_ports
from tests.serving.server_process import LONG, SMALL, ServerProcess, Stream, running

pytestmark = pytest.mark.slow

SECONDS = 120.0
SECRET = {"JAXLLM_DATA_PARALLEL_SECRET": "correct horse battery staple"}
BODY = {"prompt": "Once upon a time", "max_tokens": 20, "ignore_eos": True, "temperature": 1, "seed": 7}


class Cluster:
    """Flags of a head and its host, and where they log."""

    def __init__(self, folder: Path, *more: str) -> None:
        self.folder, self.port = folder, free_ports()
        self.shared = ("demo", *SMALL, "-dp", "2", "-dpl", "1", "--data-parallel-rpc-port", str(self.port))
        self.more = more

    def head(self) -> Any:
        """The server, which waits for its host."""
        return running(self.folder / "head", *self.shared, *self.more, environment=SECRET, wait=False)

    def host(self, name: str = "host", *flags: str, secret: str = "", first: int = 1) -> Any:
        """A host of engines."""
        environment = {**SECRET, **({"JAXLLM_DATA_PARALLEL_SECRET": secret} if secret else {})}
        rank = ("--headless", "--data-parallel-start-rank", str(first))
        return running(self.folder / name, *self.shared, *rank, *flags, environment=environment, wait=False)


def until(condition: Callable[[], bool], log: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, log()
        time.sleep(0.05)


def ask(server: ServerProcess, rank: int | None = None) -> httpx.Response:
    headers = {} if rank is None else {"X-data-parallel-rank": str(rank)}
    return httpx.post(f"{server.url}/v1/completions", json=BODY, headers=headers, timeout=SECONDS)


def states(server: ServerProcess) -> list[str]:
    shown = httpx.get(f"{server.url}/scale", timeout=SECONDS).json()
    return [each["state"] for each in shown["engines"]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), "--api-server-count", "2", "--max-restarts", "20")
    with cluster.head() as head, cluster.host() as host:
        head.wait_until_it_listens()
        yield cluster, head, host


def noise(port: int) -> None:
    """Somebody who speaks another language, or none, or says that much is to come."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00"
    huge = greeting + b"NULL".ljust(20, b"\0") + bytes(32) + b"\x02" + struct.pack("!Q", 1 << 62)
    for data in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(5000), greeting, huge, b""):
        with socket.create_connection(("127.0.0.1", port)) as strange:
            strange.sendall(data)
            strange.settimeout(0.3)
            with suppress(OSError):
                strange.recv(100)


def test_another_host_takes_part(pair: Any) -> None:
    cluster, head, host = pair
    texts = {ask(head, rank).json()["choices"][0]["text"] for rank in (0, 1, 1, None, None)}
    assert len(texts) == 1
    with httpx.Client(base_url=head.url, timeout=SECONDS) as client:
        assert client.post("/reset_prefix_cache").json() == {"success": True}
        text = client.get("/metrics").text
        assert 'generation_tokens_total{engine="1"' in text
    half_open = socket.create_connection(("127.0.0.1", cluster.port))
    noise(cluster.port)
    for name, flags, secret, first, reason in (
        ("wrong-secret", (), "another secret, that is long", 5, "rejects the secret"),
        ("wrong-model", ("--seed", "5"), "", 5, "seed is 5 on this host, and 0 on the server"),
        ("wrong-rank", (), "", 0, "engines 0 to 0: other hosts must use 1 to 63"),
    ):
        with cluster.host(name, *flags, secret=secret, first=first) as stranger:
            assert stranger.process.wait(SECONDS) == 2, stranger.log
            assert reason in stranger.log
            assert "Traceback" not in stranger.log
    half_open.close()
    assert ask(head, 1).status_code == 200
    assert states(head) == ["up", "up"]
    assert "Traceback" not in head.log + host.log


def test_a_host_that_joins_later_is_used_by_scaling(pair: Any) -> None:
    cluster, head, _ = pair

    def scale(size: int) -> httpx.Response:
        return httpx.post(f"{head.url}/scale", json={"new_data_parallel_size": size}, timeout=SECONDS)

    nobody = scale(3)
    assert nobody.status_code == 400
    assert "no host with room for engine 2 has joined" in nobody.json()["error"]["message"]
    with cluster.host("spare", first=2) as spare:
        spare.wait_for("joined")
        assert scale(3).status_code == 200
        assert ask(head, 2).json()["choices"][0]["text"] == ask(head, 0).json()["choices"][0]["text"]
        assert scale(2).status_code == 200
        assert states(head) == ["up", "up"]
        spare.process.send_signal(signal.SIGTERM)
        assert spare.end() == 0
        assert "Traceback" not in spare.log + head.log


def test_its_engine_is_killed(pair: Any) -> None:
    _, head, host = pair
    engine = host.engine()
    engine.send_signal(signal.SIGKILL)
    until(lambda: states(head) == ["up", "starting"])
    assert ask(head).status_code == 200
    until(lambda: states(head) == ["up", "up"])
    assert ask(head, 1).status_code == 200


def test_it_vanishes_and_comes_back(pair: Any) -> None:
    cluster, head, host = pair
    with httpx.Client(base_url=head.url, timeout=SECONDS, headers={"X-data-parallel-rank": "1"}) as client:
        waiting = Stream(client, LONG)
        # As if its network were gone: nobody hears that it has ended.
        host.process.send_signal(signal.SIGSTOP)
        for child in psutil.Process(host.process.pid).children():
            child.send_signal(signal.SIGSTOP)
        until(lambda: "disappeared" in head.log, lambda: head.log)
        assert ask(head).status_code == 200, "the others go on"
        for child in psutil.Process(host.process.pid).children():
            child.send_signal(signal.SIGCONT)
        host.process.send_signal(signal.SIGCONT)
        until(
            lambda: host.log.count("INFO jaxllm.serving.ipc.remote.host: joined") == 2 and states(head) == ["up", "up"],
            lambda: host.log,
        )
        assert waiting.rest()[-1] == b"[DONE]", "it has asked for this engine"
        assert ask(head, 1).status_code == 200
    host.process.send_signal(signal.SIGTERM)
    assert host.end() == 0
    until(lambda: states(head)[1] != "up")
    with cluster.host("next"):
        until(lambda: states(head) == ["up", "up"], lambda: head.log)
        assert ask(head, 1).status_code == 200
        head.process.send_signal(signal.SIGTERM)
        assert head.end() == 0
    assert "Traceback" not in head.log + host.log
