"""How many connections there may be, and what their bodies may hold, together and of one address."""

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from jaxllm.serving.http.connection.connections import counted_address
from tests.serving.http.connection.conftest import LimitedServer, Serve
from tests.serving.http.connection.test_protocol import HELLO, MIB, rest

BEGUN = b"POST /echo HTTP/1.1\r\nContent-Length: %d\r\n\r\n"


def until(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def answered(server: LimitedServer) -> bytes:
    with server.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        return rest(connection)


@pytest.mark.parametrize("limit", ["connections", "connections_per_address"])
@pytest.mark.parametrize("sent", [b"", b"GET / HT", BEGUN % 10])
def test_clients_that_hold_back_make_room_for_others(limited: Serve, limit: str, sent: bytes) -> None:
    with limited(**{limit: 8}) as server, ExitStack() as stack:
        held = [stack.enter_context(server.connect()) for _ in range(8)]
        for connection in held:
            connection.sendall(sent)
        until(lambda: len(server.connections) == 8)
        assert answered(server).endswith(b"hello")
        # The one that waited longest is gone, and no other.
        assert rest(held[0])[:12] in (b"", b"HTTP/1.1 503")
        held[1].setblocking(False)
        with pytest.raises(BlockingIOError):
            held[1].recv(1)
    assert len(server.connections) == 0


def test_connections_that_are_answered_stay(limited: Serve) -> None:
    with limited(connections=2) as server, ExitStack() as stack:
        for _ in range(2):
            stream = stack.enter_context(server.connect())
            stream.sendall(b"GET /stream?parts=100&size=1000000 HTTP/1.1\r\n\r\n")
            assert stream.recv(12) == b"HTTP/1.1 200"
        assert answered(server).startswith(b"HTTP/1.1 503 ")


def test_the_largest_unfinished_body_makes_room(limited: Serve) -> None:
    with limited(buffered_body_bytes=4 * MIB) as server, ExitStack() as stack:
        large = [stack.enter_context(server.connect()) for _ in range(8)]
        for connection in large:
            connection.sendall(BEGUN % (10 * MIB))
            try:
                connection.sendall(b"x" * (1 * MIB))
            except ConnectionError:
                continue
        small = stack.enter_context(server.connect())
        small.sendall(BEGUN % 1000 + b"x" * 1000)
        assert small.recv(65536).endswith(b"1000")
        assert server.connections.body_bytes <= 4 * MIB
        for connection in large:
            connection.close()
        until(lambda: server.connections.body_bytes == 0)
    assert server.gone == 8


def test_bodies_are_counted_once_and_let_go(limited: Serve) -> None:
    with limited(buffered_body_bytes=4 * MIB) as server:
        for _ in range(5):
            with server.connect() as connection:
                connection.sendall(BEGUN % (3 * MIB) + b"x" * (3 * MIB))
                # Headers and body may come apart.
                answer = b""
                while not answer.endswith(b"%d" % (3 * MIB)):
                    part = connection.recv(65536)
                    assert part, answer
                    answer += part
        until(lambda: server.connections.body_bytes == 0)


def test_addresses_of_one_subscriber_are_one() -> None:
    assert counted_address(None) is None
    assert counted_address(("127.0.0.1", 1)) == counted_address(("::ffff:127.0.0.1", 1)) == "127.0.0.1"
    assert counted_address(("2001:db8::1", 1)) == counted_address(("2001:db8::2:3%eth0", 1))
    assert counted_address(("2001:db8::1", 1)) != counted_address(("2001:db8:0:1::1", 1))


def test_many_connections_end_as_one(limited: Serve) -> None:
    with limited(connections=500, connections_per_address=500) as server, ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.socket()).connect(("127.0.0.1", server.port))
        until(lambda: len(server.connections) == 200)
        stack.close()
        until(lambda: len(server.connections) == 0)
        with server.connect() as connection:
            connection.sendall(HELLO)
            assert connection.recv(65536).endswith(b"hello")
