"""Who may join: a shared secret, or keys of the operator's; either way CURVE encrypts and proves both sides.

ZeroMQ's CURVE (RFC 26) needs a pair of keys for each side. Both pairs are derived from a shared secret, so that whoever
knows the secret knows the keys, and nobody else gets through the handshake. Without either, only this machine may join.
"""

import hashlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import zmq
import zmq.auth
from zmq.utils import z85

from jaxllm.errors import ConfigError
from jaxllm.serving.ipc.remote.messages import MOST_BYTES
from jaxllm.serving.options.server import ServerOptions

SECRET = "JAXLLM_DATA_PARALLEL_SECRET"
_LEAST = 16
"""Characters of a secret: shorter ones can be guessed."""
_HANDSHAKE_MS = 5000


@dataclass(frozen=True)
class Keys:
    """One side's keys, and those of the other side that are accepted."""

    public: bytes
    secret: bytes
    peers: frozenset[bytes]

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a peer with this public key may join; ZeroMQ's authenticator asks."""
        del domain
        return key in self.peers


def keys_of(options: ServerOptions, address: str, environment: Mapping[str, str] | None = None) -> Keys | None:
    """The keys for the head at this address, or for a host that dials it; None: on this machine without any.

    Raises `ConfigError` where there must be some, and for what cannot be read.
    """
    if options.data_parallel_curve_key is not None or options.data_parallel_curve_peers is not None:
        if options.data_parallel_curve_key is None or options.data_parallel_curve_peers is None:
            raise ConfigError("data_parallel_curve_key and data_parallel_curve_peers must be given together")
        public, own = _certificate(Path(options.data_parallel_curve_key))
        if own is None:
            raise ConfigError(
                f"data_parallel_curve_key={options.data_parallel_curve_key!r}: the file has no secret key"
            )
        peers = _peers(Path(options.data_parallel_curve_peers))
        if options.headless and len(peers) != 1:
            raise ConfigError("data_parallel_curve_peers: with headless, give one certificate, that of the server")
        return Keys(public, own, peers)
    secret = _secret(options, os.environ if environment is None else environment)
    if secret is None:
        if not is_loopback(address):
            raise ConfigError(
                f"data_parallel_address={address!r}: other machines can reach this address, so hosts need a secret to "
                f"join: set {SECRET} or --data-parallel-secret-file to the same value on every host"
            )
        return None
    side, other = ("host", "head") if options.headless else ("head", "host")
    own, public = _derived(secret, side)
    return Keys(public, own, frozenset({_derived(secret, other)[1]}))


def protect(wire: zmq.Socket[Any], keys: Keys | None, *, is_head: bool) -> None:
    """Set what makes a TCP socket safe: keys, and bounds for those who speak something else."""
    wire.setsockopt(zmq.MAXMSGSIZE, MOST_BYTES)
    wire.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    wire.setsockopt(zmq.IPV6, 1)
    wire.setsockopt(zmq.SNDHWM, 0)
    if keys is None:
        return
    wire.curve_publickey, wire.curve_secretkey = keys.public, keys.secret
    if is_head:
        wire.curve_server = True
    else:
        (wire.curve_serverkey,) = keys.peers


def is_loopback(address: str) -> bool:
    """Whether an address is reached from this machine alone. Raises `ConfigError` for a name that is unknown."""
    return all(ip_address(each.partition("%")[0]).is_loopback for each in _resolved(address))


def address_of(name: str) -> str:
    """The numbers of an address, which may be a name. Raises `ConfigError` for one that is unknown."""
    return _resolved(name)[0]


def _resolved(address: str) -> list[str]:
    try:
        return [str(each[4][0]) for each in socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)]
    except OSError as error:
        raise ConfigError(f"data_parallel_address={address!r}: {error.strerror or error}") from None


def _secret(options: ServerOptions, environment: Mapping[str, str]) -> str | None:
    secret = environment.get(SECRET)
    if options.data_parallel_secret_file is not None:
        try:
            secret = Path(options.data_parallel_secret_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"data_parallel_secret_file={options.data_parallel_secret_file!r}: {error}") from None
    if secret is not None and len(secret) < _LEAST:
        raise ConfigError(f"the data parallel secret has {len(secret)} characters, but needs at least {_LEAST}")
    return secret


def _derived(secret: str, side: str) -> tuple[bytes, bytes]:
    """The secret and the public key of a side. Slow on purpose: a secret of a person's may be guessed."""
    salt = f"jaxllm data parallel {side}".encode()
    own = z85.encode(hashlib.scrypt(secret.encode(), salt=salt, n=1 << 14, r=8, p=1, dklen=32))
    return own, zmq.curve_public(own)


def _certificate(path: Path) -> tuple[bytes, bytes | None]:
    try:
        return zmq.auth.load_certificate(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not a certificate as written by zmq.auth.create_certificates: {error}") from None


def _peers(path: Path) -> frozenset[bytes]:
    """Public keys: of one certificate, or of all in a folder."""
    files = sorted(path.glob("*.key")) if path.is_dir() else [path]
    if not files:
        raise ConfigError(f"data_parallel_curve_peers={str(path)!r}: the folder contains no *.key files")
    return frozenset(_certificate(file)[0] for file in files)
