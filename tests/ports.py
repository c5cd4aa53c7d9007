"""Ports for servers under test."""

import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000


def free_ports() -> int:
    """A port of this machine that is free, as the one after it is.

    The system gives it to no connection before the server under test listens: it is below those that connections
    leave from. A client that tries such a port until somebody listens could be connected with itself, too.
    """
    end = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    choose = random.SystemRandom()
    while True:
        port = choose.randrange(_LOWEST, max(end - 1, _LOWEST + 1000))
        with socket.socket() as first, socket.socket() as second:
            try:
                first.bind(("127.0.0.1", port))
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
