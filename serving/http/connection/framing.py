"""The headers about a request's body and its target: only what has one meaning for everybody in between.

A proxy that reads a request in another way than the server lets a client hide a second request in the first
(RFC 9112, 11.2). What could be read in two ways is rejected, and so are codings that nobody here decodes.
"""

import re
from collections.abc import Sequence
from typing import Final

Refusal = tuple[int, str]

_HOST: Final = re.compile(rb"[A-Za-z0-9._~!$&'()*+;=%:\[\]-]*")
_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_KNOWN_CODINGS: Final = frozenset(
    (b"gzip", b"x-gzip", b"deflate", b"compress", b"x-compress", b"br", b"zstd", b"identity")
)
_SHOWN: Final = 64


def refusal(headers: Sequence[tuple[bytes, bytes]], http_version: str) -> Refusal | None:
    """The status and the reason to reject a request with these headers, whose names are in lower case; None: none."""
    hosts, codings, encodings, lengths = [], [], [], []
    for name, value in headers:
        if name == b"host":
            hosts.append(value)
        elif name == b"transfer-encoding":
            codings.append(value)
        elif name == b"content-encoding":
            encodings.append(value)
        elif name == b"content-length":
            lengths.append(value)
        elif name == b"expect" and value.strip().lower() != b"100-continue":
            return 417, f"Expect: {_shown(value)} is not supported; only 100-continue is"
    if len(hosts) > 1:
        return 400, f"the request has {len(hosts)} Host headers; send exactly one"
    if hosts and not _HOST.fullmatch(hosts[0].strip()):
        return 400, "the Host header is not a valid host name"
    if len(lengths) > 1:
        return 400, "the request has more than one Content-Length header"
    transfer = _transfer(b",".join(codings), http_version, has_length=bool(lengths)) if codings else None
    return transfer or _content(b",".join(encodings))


def _transfer(value: bytes, http_version: str, *, has_length: bool) -> Refusal | None:
    """For bodies in chunks."""
    if has_length:
        return 400, "the request has both Transfer-Encoding and Content-Length; send one"
    if http_version != "1.1":
        return 400, f"Transfer-Encoding is not part of HTTP/{http_version}"
    parts = [part.strip(b" \t").lower() for part in value.split(b",")]
    if parts == [b"chunked"]:
        return None
    *others, last = parts
    if last != b"chunked" or b"chunked" in others or not all(_TOKEN.fullmatch(part) for part in others):
        known = last in _KNOWN_CODINGS and b"chunked" not in others
        return (
            501 if known else 400,
            f"Transfer-Encoding: {_shown(value)} does not determine where the body ends; send chunked",
        )
    return 501, f"Transfer-Encoding: {_shown(value)} is not supported; send chunked alone"


def _content(value: bytes) -> Refusal | None:
    """For bodies that are compressed."""
    if all(part.strip().lower() in (b"", b"identity") for part in value.split(b",")):
        return None
    return 415, f"Content-Encoding: {_shown(value)} is not supported; send the body uncompressed"


def _shown(value: bytes) -> str:
    return ascii(value[:_SHOWN].decode("latin-1"))
