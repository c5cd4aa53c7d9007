"""A client that reads when it likes to."""

import json
import socket
from typing import Any

from tests.e2e.serving.streams import Chunks


def slow_connection(port: int) -> socket.socket:
    """A connection to the server that holds little of what is not read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(300)
    connection.connect(("127.0.0.1", port))
    return connection


def request_bytes(path: str, body: dict[str, Any]) -> bytes:
    """A request as it goes over the wire. HTTP/1.0: its response is not in chunks, and ends with the connection."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def read_all(connection: socket.socket) -> Chunks:
    """Read the whole response, a stream."""
    chunks = Chunks()
    with connection.makefile("rb") as file:
        status = file.readline()
        assert b" 200 " in status, status
        while file.readline().strip():
            pass
        while data := file.read1(65536):
            chunks.feed(data)
    return chunks
