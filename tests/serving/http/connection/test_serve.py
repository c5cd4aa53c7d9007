"""The limits of HTTP before a real model: what hostile clients do, and what others notice of it."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from tests.serving.http.connection.test_protocol import CHUNKED, MIB, rest, send_all
from tests.serving.server_process import SMALL, ServerProcess, running

STREAM = {"prompt": "Once upon a time", "max_tokens": 20, "ignore_eos": True, "stream": True}
COMPLETION = b'{"prompt":"Once","max_tokens":200,"ignore_eos":true}'
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
WORST_SECONDS = 0.5
"""That a probe may take alongside whatever is hostile; a busy machine adds some, and before there were limits it was
many seconds."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log: Path = tmp_path_factory.mktemp("server") / "log"
    flags = (
        *("--host", "0.0.0.0", "--max-body-size", str(32 * MIB), "--max-buffered-body-bytes", str(128 * MIB)),
        *("--timeout-headers", "2", "--timeout-body", "2"),
    )
    with running(log, "demo", *SMALL, *flags) as process:
        yield process
        assert "Traceback" not in process.log


@pytest.fixture(scope="module")
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
        yield client


def connect(server: ServerProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def resident(server: ServerProcess) -> int:
    return int(psutil.Process(server.process.pid).memory_info().rss)


@contextmanager
def probes(http: httpx.Client) -> Iterator[list[float]]:
    """Seconds that each of many probes took, one after the other, while this lasts."""
    seconds: list[float] = []
    ended = threading.Event()

    def probe() -> None:
        while not ended.is_set():
            began = time.monotonic()
            assert http.get("/health").status_code == 200
            seconds.append(time.monotonic() - began)
            time.sleep(0.01)

    thread = threading.Thread(target=probe)
    thread.start()
    try:
        yield seconds
    finally:
        ended.set()
        thread.join()


def test_endless_trailers(server: ServerProcess, http: httpx.Client) -> None:
    before = resident(server)
    with probes(http) as seconds, connect(server) as connection:
        connection.sendall(CHUNKED.replace(b"/echo", b"/v1/completions") + b"0\r\na: ")
        assert send_all(connection, b"x" * 65536, 200 * MIB) < 30 * MIB
    assert max(seconds) < WORST_SECONDS
    assert resident(server) - before < 20 * MIB


def test_sixty_unfinished_uploads(server: ServerProcess, http: httpx.Client) -> None:
    """Together they hold no more than is allowed, others are served, and the rest is gone after a while."""
    before = resident(server)
    with ExitStack() as stack:
        uploads = [stack.enter_context(connect(server)) for _ in range(60)]
        for upload in uploads:
            upload.sendall(POST % (31 * MIB))
            send_all(upload, b"x" * MIB, 30 * MIB)
        assert resident(server) - before < 128 * MIB + 64 * MIB
        assert http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200
        assert rest(uploads[-1])[:12] in (b"HTTP/1.1 408", b"HTTP/1.1 503", b"")


def test_idle_and_half_connections(server: ServerProcess, http: httpx.Client) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(server)) for _ in range(400)]
        for connection in idle[::2]:
            connection.sendall(b"POST /v1/comp")
        assert http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200
        for connection in idle:
            assert rest(connection)[:12] in (b"HTTP/1.1 408", b"")


def test_pipelining_and_leaving(server: ServerProcess, http: httpx.Client) -> None:
    """The log stays free of tracebacks, and the engine of requests that nobody reads."""
    for _ in range(5):
        with connect(server) as connection:
            connection.sendall((POST % len(COMPLETION) + COMPLETION) * 4)
            time.sleep(0.1)
    deadline = time.monotonic() + 60
    while http.get("/load").json() != {"server_load": 0}:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "Traceback" not in server.log


def test_a_stream_for_a_client_of_http_1_0(server: ServerProcess, http: httpx.Client) -> None:
    body = json.dumps({**STREAM, "temperature": 0}).encode()
    with connect(server) as connection:
        connection.sendall(POST.replace(b"1.1", b"1.0") % len(body) + body)
        head, _, events = rest(connection).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert events.startswith(b"data: {")
    assert events.endswith(b"data: [DONE]\n\n")


def test_web_pages_may_not_call_it(http: httpx.Client) -> None:
    origin = {"Origin": "https://evil.example"}
    answer = http.get("/v1/models", headers=origin)
    assert not [name for name in answer.headers if name.startswith("access-control")]
    asked = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    assert "access-control-allow-origin" not in http.options("/v1/completions", headers=asked).headers
    # Without a content type, browsers ask nobody before they send it.
    blind = http.post("/v1/completions", content=COMPLETION, headers=origin)
    assert blind.status_code == 415
    assert http.post("/v1/completions", content=COMPLETION, headers={"Content-Type": ""}).status_code in (200, 415)


def test_an_open_address_is_told(server: ServerProcess) -> None:
    assert "anyone who can reach this machine can use this server" in server.log


def test_who_reads_nothing_of_a_long_stream(server: ServerProcess) -> None:
    """Another one does not wait for it."""
    body = json.dumps({**STREAM, "max_tokens": 400, "logprobs": 5, "n": 4}).encode()
    with connect(server) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(POST % len(body) + body)
        with suppress(TimeoutError):
            connection.settimeout(1)
            connection.recv(100)
        answer = httpx.post(f"http://127.0.0.1:{server.port}/v1/completions", json=STREAM, timeout=60)
        assert answer.text.endswith("data: [DONE]\n\n")
