"""Requests whose end or target could be read in two ways are refused, and so are codings that nobody decodes."""

import socket

import pytest

from jaxllm.serving.http.connection.framing import refusal
from tests.serving.http.connection.conftest import Serve
from tests.serving.http.connection.test_protocol import rest

HOST = (b"host", b"x")
CHUNKED = (b"transfer-encoding", b"chunked")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([HOST], None),
        ([], None),
        ([HOST, (b"content-length", b"3")], None),
        ([HOST, CHUNKED], None),
        ([HOST, (b"transfer-encoding", b" Chunked\t")], None),
        ([HOST, (b"content-encoding", b"identity")], None),
        ([HOST, (b"expect", b"100-Continue")], None),
        ([(b"host", b"[::1]:8000")], None),
        ([(b"host", b"a_b-c.example:80")], None),
        ([(b"host", b"")], None),
        ([HOST, HOST], 400),
        ([HOST, (b"host", b"y")], 400),
        ([(b"host", b"a b")], 400),
        ([(b"host", b"a/b")], 400),
        ([(b"host", b"user@a")], 400),
        ([(b"host", b"a, b")], 400),
        ([HOST, (b"content-length", b"3"), (b"content-length", b"3")], 400),
        ([HOST, (b"content-length", b"3"), CHUNKED], 400),
        ([HOST, CHUNKED, CHUNKED], 400),
        ([HOST, (b"transfer-encoding", b"chunked, chunked")], 400),
        ([HOST, (b"transfer-encoding", b"chunked, gzip")], 400),
        ([HOST, (b"transfer-encoding", b"xchunked")], 400),
        ([HOST, (b"transfer-encoding", b"chunked;q=1")], 400),
        ([HOST, (b"transfer-encoding", b"\x0bchunked")], 400),
        ([HOST, (b"transfer-encoding", b"")], 400),
        ([HOST, (b"transfer-encoding", b",chunked")], 400),
        ([HOST, (b"transfer-encoding", b"gzip, chunked")], 501),
        ([HOST, (b"transfer-encoding", b"gzip"), CHUNKED], 501),
        ([HOST, (b"transfer-encoding", b"GZIP ,\tchunked")], 501),
        ([HOST, (b"transfer-encoding", b"gzip")], 501),
        ([HOST, (b"transfer-encoding", b"identity")], 501),
        ([HOST, CHUNKED, (b"content-encoding", b"gzip")], 415),
        ([HOST, (b"content-encoding", b"br")], 415),
        ([HOST, (b"content-encoding", b"identity, deflate")], 415),
        ([HOST, (b"content-encoding", b"identity"), (b"content-encoding", b"zstd")], 415),
        ([HOST, (b"expect", b"200-ok")], 417),
    ],
)
def test_what_is_refused(headers: list[tuple[bytes, bytes]], status: int | None) -> None:
    found = refusal(headers, "1.1")
    assert (None if found is None else found[0]) == status
    assert found is None or found[1].isprintable()


def test_the_older_version_has_no_chunks() -> None:
    assert refusal([HOST, CHUNKED], "1.0") is not None
    assert refusal([], "1.0") is None


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Host: x\r\nHost: y\r\nContent-Length: 2\r\n", 400),
        (b"Host: x\r\nTransfer-Encoding: gzip, chunked\r\n", 501),
        (b"Host: x\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", 501),
        (b"Host: x\r\nTransfer-Encoding: chunked, chunked\r\n", 400),
        (b"Host: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n", 400),
        (b"Host: x\r\nTransfer-Encoding : chunked\r\n", 400),
        (b"Host: x\r\nTransfer-Encoding:\r\n chunked\r\n", 400),
        (b"Host: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n", 400),
        (b"Host: x\r\nContent-Length: +2\r\n", 400),
        (b"Host: x\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n", 415),
    ],
)
def test_nothing_hides_behind_a_request_that_is_refused(limited: Serve, head: bytes, status: int) -> None:
    with limited() as server, socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.settimeout(30)
        connection.sendall(b"POST /echo HTTP/1.1\r\n" + head + b"\r\n{}GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = rest(connection)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.count(b"connection: close\r\n") == answer.count(b"\r\n\r\n") == 1
    assert (b"accept-encoding: identity" in answer) == (status == 415)
