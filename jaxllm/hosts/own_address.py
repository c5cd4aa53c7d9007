"""The address of this host."""

import os
import socket

_SOMEWHERE = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737): nothing is sent there, but the way to it begins at our own."""


def own_address() -> str:
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
