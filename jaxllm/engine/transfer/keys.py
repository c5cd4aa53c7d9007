"""What makes the sockets of transfers safe: keys that are made from a secret of the operator's, and bounds.

As in `jaxllm.hosts.sockets`, the public half of a producer's keys is never sent, and CurveZMQ makes no connection
without it: who does not know the secret neither reads nor says anything.
"""

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import zmq
from zmq.utils import z85

from jaxllm.errors import ConfigError

_LEAST = 16
"""Characters of a secret: shorter ones can be guessed."""
HEARTBEAT_MS, SILENT_MS = 2000, 6000
"""A peer that says nothing for the second is gone."""


def read_secret(name: str | None) -> str | None:
    """The secret in a file. Raises `ConfigError`."""
    if name is None:
        return None
    try:
        secret = Path(name).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"kv_transfer_config: secret_file={name!r} cannot be read: {error}") from None
    if len(secret) < _LEAST:
        raise ConfigError(
            f"kv_transfer_config: secret_file={name!r} has {len(secret)} characters, but needs at least {_LEAST}; "
            "make one with: openssl rand -hex 32"
        )
    return secret


@cache
def _keys(secret: str) -> tuple[bytes, bytes]:
    """The public and the private key of producers. Slow on purpose: a secret of a person's may be guessed."""
    private = hashlib.scrypt(secret.encode(), salt=b"jaxllm: transfer of pages", n=2**14, r=8, p=1, dklen=32)
    encoded = z85.encode(private)
    return zmq.curve_public(encoded), encoded


def protect(wire: "zmq.Socket[Any]", secret: str | None, *, produces: bool, most_bytes: int) -> None:
    """Set keys and bounds of a socket; a frame may have so many bytes."""
    wire.setsockopt(zmq.MAXMSGSIZE, most_bytes)
    wire.setsockopt(zmq.LINGER, 0)
    wire.setsockopt(zmq.IPV6, 1)
    wire.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    wire.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENT_MS)
    wire.setsockopt(zmq.HANDSHAKE_IVL, SILENT_MS)
    if secret is None:
        return
    public, private = _keys(secret)
    if produces:
        wire.curve_server = True
        wire.curve_publickey, wire.curve_secretkey = public, private
    else:
        wire.curve_serverkey = public
        wire.curve_publickey, wire.curve_secretkey = zmq.curve_keypair()
