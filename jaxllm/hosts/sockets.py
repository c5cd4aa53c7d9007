"""The sockets between the processes of an engine. What is sent arrives once and in order, or the connection is gone.

With a secret, both sides derive the key pair of the first process from it. Its public half is never sent, and a
connection can only be made with it (CurveZMQ), so who does not know the secret neither reads nor says anything.
"""

import errno
import hashlib
import ipaddress
import socket
from functools import cache

import zmq
from zmq.utils import z85

from jaxllm.errors import ConfigError
from jaxllm.hosts.placement import Placement

LARGEST_FROM_FOLLOWER = 4 * 2**20
"""Bytes of a message to the first process. Who sends more is cut off."""


def leader_socket(context: "zmq.Context[zmq.Socket[bytes]]", place: Placement, secret: str | None) -> zmq.Socket[bytes]:
    """The bound socket of the first process. Raises `ConfigError` where the address cannot be had."""
    made = context.socket(zmq.ROUTER)
    made.linger = 1000
    # Nothing is ever dropped: sending to one that is gone is an error.
    made.setsockopt(zmq.ROUTER_MANDATORY, 1)
    made.sndhwm = made.rcvhwm = 0
    made.maxmsgsize = LARGEST_FROM_FOLLOWER
    if secret:
        public, private = _keys(secret)
        made.curve_server = True
        made.curve_publickey, made.curve_secretkey = public, private
    address = _resolve(place)
    made.ipv6 = ":" in address
    try:
        _bind(made, address, place.port)
    except zmq.ZMQError as error:
        made.close()
        if error.errno == zmq.EADDRINUSE:
            raise ConfigError(
                f"{place.address}:{place.port} is in use, by another engine or by one that has not exited yet; give "
                "each engine its own master_port"
            ) from None
        raise ConfigError(f"{place.address}:{place.port} cannot be bound: {error}") from None
    return made


def _bind(made: zmq.Socket[bytes], address: str, port: int) -> None:
    try:
        made.bind(_url(address, port))
    except zmq.ZMQError as error:
        # The address by which others reach this host may not be its own, as that of a Service.
        if error.errno not in (zmq.EADDRNOTAVAIL, errno.ENODEV):
            raise
        made.bind(f"tcp://*:{port}")


def follower_socket(
    context: "zmq.Context[zmq.Socket[bytes]]", place: Placement, secret: str | None
) -> zmq.Socket[bytes]:
    """The socket of another process. It connects as soon as the first one is there."""
    made = context.socket(zmq.DEALER)
    made.linger = 1000
    made.sndhwm = made.rcvhwm = 0
    made.reconnect_ivl, made.reconnect_ivl_max = 100, 1000
    if secret:
        made.curve_serverkey, _ = _keys(secret)
        made.curve_publickey, made.curve_secretkey = zmq.curve_keypair()
    made.ipv6 = True
    return made


def connect(made: zmq.Socket[bytes], place: Placement) -> None:
    """Begin to connect. The name of the first process is looked up again with every try."""
    made.connect(_url(place.address, place.port))


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


@cache
def _keys(secret: str) -> tuple[bytes, bytes]:
    """The public and the private key of the first process, from the secret. Slow on purpose: secrets may be short."""
    private = hashlib.scrypt(secret.encode(), salt=b"jaxllm: several hosts", n=2**14, r=8, p=1, dklen=32)
    encoded = z85.encode(private)
    return zmq.curve_public(encoded), encoded


def _resolve(place: Placement) -> str:
    try:
        found = socket.getaddrinfo(place.address, place.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"master_addr={place.address!r} cannot be resolved: {error.strerror}") from None
    return str(found[0][4][0])


def _url(address: str, port: int) -> str:
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"
