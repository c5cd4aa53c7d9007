"""A server on a loopback port that answers every path with raw bytes, as fast or slow as it likes."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Answer = Callable[[socket.socket], None]


class RawServer:
    """Answers by path; remembers what was asked."""

    def __init__(self, answers: dict[str, Answer | bytes], context: ssl.SSLContext | None = None) -> None:
        self.answers, self.requests = answers, list[str]()
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            if self._context is not None:
                connection = self._context.wrap_socket(connection, server_side=True)
            asked = b""
            while b"\r\n\r\n" not in asked and (more := connection.recv(4096)):
                asked += more
            self.requests.append(asked.decode())
            answer = self.answers.get(asked.split(b" ")[1].decode(), ok(b"none", status="404 Not Found"))
            if callable(answer):
                answer(connection)
            else:
                connection.sendall(answer)
            connection.close()

    def close(self) -> None:
        self._listener.close()


@contextmanager
def serving(answers: dict[str, Answer | bytes], context: ssl.SSLContext | None = None) -> Iterator[RawServer]:
    """A server, for a while."""
    server = RawServer(answers, context)
    yield server
    server.close()


def ok(body: bytes, *headers: str, status: str = "200 OK", length: int | None = None) -> bytes:
    """A whole answer, whose length may be a lie."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def redirect(location: str, status: str = "302 Found") -> bytes:
    """An answer that leads elsewhere."""
    return ok(b"", f"Location: {location}", status=status)


def endless(connection: socket.socket) -> None:
    """A body without an end, as fast as it is read."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    while True:
        connection.sendall(bytes(1 << 16))


def endless_chunks(connection: socket.socket) -> None:
    """The same, in chunks."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        connection.sendall(b"10000\r\n" + bytes(1 << 16) + b"\r\n")


def endless_headers(connection: socket.socket) -> None:
    """A head without an end."""
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        connection.sendall(b"X: " + b"x" * 1000 + b"\r\n")


def slow(connection: socket.socket) -> None:
    """A byte now and then, which no pause between two reads would notice."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        connection.sendall(b"x")
        time.sleep(0.05)


def silent(connection: socket.socket) -> None:
    """Nothing at all."""
    time.sleep(5)
