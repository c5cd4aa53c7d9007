"""Addresses and ports of this machine."""

import os
import socket

__all__ = ["get_ip", "get_open_port"]

_SOMEWHERE = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737): nothing is sent there, but the way to it begins at our own."""


def get_ip() -> str:
    """The address under which other hosts reach this one: `VLLM_HOST_IP`, or else that of the default route."""
    given = os.environ.get("VLLM_HOST_IP")
    if given:
        return given
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect(_SOMEWHERE)
        except OSError:
            return "127.0.0.1"
        return str(way.getsockname()[0])


def get_open_port() -> int:
    """A TCP port that nobody uses now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])
