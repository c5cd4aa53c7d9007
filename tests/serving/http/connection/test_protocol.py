"""One connection is limited in bytes and time; sockets do here what no client should."""

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.serving.http.connection.conftest import LimitedServer, Serve

CHUNKED = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
HELLO = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
MIB = 2**20
SECONDS = 30.0
"""Enough for anything on a busy machine."""


@pytest.fixture(scope="module")
def server(limited: Serve) -> Iterator[LimitedServer]:
    with limited() as running:
        yield running


@pytest.fixture(scope="module")
def impatient(limited: Serve) -> Iterator[LimitedServer]:
    with limited(keep_alive=2, headers_seconds=1, body_seconds=1, body_rate=1000, send_seconds=1) as running:
        yield running


def rest(connection: socket.socket) -> bytes:
    """All that the server sends until it closes the connection."""
    found = b""
    try:
        while data := connection.recv(65536):
            found += data
    except ConnectionResetError:
        pass
    return found


def send_all(connection: socket.socket, piece: bytes, total: int) -> int:
    """Send pieces until there are `total` bytes, or the server takes no more; how many it took."""
    sent = 0
    try:
        while sent < total:
            connection.sendall(piece)
            sent += len(piece)
    except OSError:
        pass
    return sent


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"0\r\na: ", b"x" * 65536),
        (b"0\r\n", b"a: " + b"x" * 65000 + b"\r\n"),
        (b"0\r\n", b"a:b\r\n" * 10000),
        (b"1;a=", b"x" * 65536),
        (b"", b"1\r\nx\r\n" * 10000),
        (b"", b"1;" + b"x" * 60000 + b"\r\nx\r\n"),
    ],
    ids=["one trailer", "large trailers", "many trailers", "one extension", "tiny chunks", "large extensions"],
)
def test_what_surrounds_chunks_is_limited(server: LimitedServer, begin: bytes, piece: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(CHUNKED + begin)
        # Buffers on the way take some megabytes before the sender notices.
        assert send_all(connection, piece, 60 * MIB) < 30 * MIB
        assert rest(connection)[:12] in (b"HTTP/1.1 431", b"")


def test_a_refused_trailer_has_an_answer(server: LimitedServer) -> None:
    with server.connect() as connection:
        connection.sendall(CHUNKED + b"1\r\nx\r\n0\r\n" + b"a: b\r\n" * 300)
        answer = rest(connection)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"--h11-max-header-count" in answer


def test_chunks_and_trailers_within_limits(server: LimitedServer) -> None:
    """Trailers do not become headers: a proxy, and the check of keys, have seen the headers before."""
    with server.connect() as connection:
        chunks = b"".join(b"%x;name=value\r\n%b\r\n" % (size, b"x" * size) for size in (1, 10, 70_000))
        connection.sendall(CHUNKED + chunks + b"0\r\nauthorization: Bearer x\r\n\r\n" + HELLO)
        answers = b""
        while not answers.endswith(b"hello"):
            answers += connection.recv(65536)
    assert b"70011" in answers
    assert server.headers[-1] == [b"host", b"transfer-encoding"]


def test_pipelined_requests_are_answered_in_order(server: LimitedServer) -> None:
    with server.connect() as connection:
        connection.sendall(HELLO * 8)
        answers = b""
        while answers.count(b"hello") < 8:
            answers += connection.recv(65536)
        connection.sendall(HELLO)
        assert connection.recv(65536).endswith(b"hello")


def test_too_many_pipelined_requests(server: LimitedServer) -> None:
    with server.connect() as connection:
        connection.sendall(HELLO * 5000)
        assert rest(connection).count(b"HTTP/1.1 200") <= 1


def test_leaving_behind_pipelined_requests(server: LimitedServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            with server.connect() as connection:
                connection.sendall(HELLO * 8)
                time.sleep(0.02)
        time.sleep(0.3)
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.mark.parametrize("path", [b"/", b"/stream?parts=3&size=10"])
def test_http_1_0_gets_no_chunks(server: LimitedServer, path: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(b"GET %b HTTP/1.0\r\n\r\n" % path)
        head, _, body = rest(connection).partition(b"\r\n\r\n")
    assert body == (b"hello" if path == b"/" else b"x" * 30)
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()


def seconds_until_closed(connection: socket.socket) -> tuple[float, bytes]:
    began = time.monotonic()
    answer = rest(connection)
    return time.monotonic() - began, answer


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", b""),
        (b"POST /ec", b"HTTP/1.1 408 "),
        (b"POST /echo HTTP/1.1\r\nContent-Length: 100\r\n\r\n", b"HTTP/1.1 408 "),
        (b"POST /echo HTTP/1.1\r\nContent-Length: 100\r\n\r\n{", b"HTTP/1.1 408 "),
        (CHUNKED + b"1\r\nx\r\n", b"HTTP/1.1 408 "),
    ],
    ids=["nothing", "half a header", "no body", "half a body", "half the chunks"],
)
def test_who_stops_sending_is_closed(impatient: LimitedServer, sent: bytes, status: bytes) -> None:
    with impatient.connect() as connection:
        connection.sendall(sent)
        seconds, answer = seconds_until_closed(connection)
    assert 0.9 < seconds < SECONDS
    assert answer[: len(status)] == status
    assert (answer == b"") == (status == b"")


@pytest.mark.parametrize("after", [HELLO, CHUNKED], ids=["headers", "body"])
def test_a_byte_now_and_then_is_too_slow(impatient: LimitedServer, after: bytes) -> None:
    with impatient.connect() as connection:
        connection.sendall(after if after == CHUNKED else b"GET / HTTP/1.1\r\na: ")
        began = time.monotonic()
        sent = 0
        while time.monotonic() < began + SECONDS:
            try:
                connection.sendall(b"1\r\nx\r\n" if after == CHUNKED else b"x")
            except OSError:
                break
            sent += 1
            time.sleep(0.2)
        assert 3 < sent < 100


def test_an_idle_connection_is_closed_whatever_newlines_come(impatient: LimitedServer) -> None:
    with impatient.connect() as connection:
        connection.sendall(HELLO)
        assert connection.recv(65536).endswith(b"hello")
        began = time.monotonic()
        with suppress(OSError):
            while time.monotonic() < began + SECONDS:
                connection.sendall(b"\r\n")
                time.sleep(0.2)
        assert time.monotonic() - began < SECONDS


def test_who_is_slow_but_steady_is_served(impatient: LimitedServer) -> None:
    with impatient.connect() as connection:
        connection.sendall(b"POST /echo HTTP/1.1\r\nContent-Length: 10000\r\n\r\n")
        for _ in range(20):
            connection.sendall(b"x" * 500)
            time.sleep(0.15)
        assert connection.recv(65536).endswith(b"10000")


def test_who_does_not_read_a_stream_is_cut_off(impatient: LimitedServer) -> None:
    impatient.ended.clear()
    with impatient.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(b"GET /stream?parts=1000&size=100000 HTTP/1.1\r\n\r\n")
        assert impatient.ended.wait(SECONDS)
        assert len(rest(connection)) < 100_000_000


def test_a_slow_reader_of_a_stream_gets_all(limited: Serve) -> None:
    with limited(send_seconds=5) as server, server.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        connection.sendall(b"GET /stream?parts=200&size=100000 HTTP/1.1\r\nConnection: close\r\n\r\n")
        found = 0
        while data := connection.recv(400_000):
            found += len(data)
            time.sleep(0.02)
    assert found > 20_000_000


def test_a_body_behind_its_answer_is_read_for_a_while_only(server: LimitedServer) -> None:
    with server.connect() as connection:
        connection.sendall(b"POST /refuse HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n")
        assert send_all(connection, b"x" * MIB, 300 * MIB) < 150 * MIB
        assert rest(connection).startswith(b"HTTP/1.1 401")


def test_a_request_that_came_in_time_is_read_by_a_busy_server(impatient: LimitedServer) -> None:
    """Its event loop sees first that the connection has been idle for too long."""
    with impatient.connect() as connection:
        connection.sendall(HELLO)
        assert connection.recv(65536).endswith(b"hello")
        impatient.hold_up(3)
        # It has begun to do nothing else.
        time.sleep(0.3)
        connection.sendall(HELLO)
        assert connection.recv(65536).endswith(b"hello")
        assert 1 < seconds_until_closed(connection)[0] < 5


@pytest.mark.parametrize("leaves", ["early", "unread", "later"])
def test_a_response_that_does_not_reach_its_client_is_known(server: LimitedServer, leaves: str) -> None:
    for event in (server.asked, server.answers, server.undelivered):
        event.clear()
    with server.connect() as connection:
        connection.sendall(b"GET /watched HTTP/1.1\r\nhost: x\r\n\r\n")
        assert server.asked.wait(60)
        if leaves == "early":
            connection.close()
            time.sleep(0.2)
        server.answers.set()
        if leaves == "unread":
            connection.recv(1)
        elif leaves == "later":
            assert connection.recv(65536).endswith(b"read me")
    assert server.undelivered.wait(0.5 if leaves == "later" else 60) == (leaves != "later")
