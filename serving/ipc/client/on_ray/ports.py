"""Ports for what Ray has placed."""

import contextlib
import socket


def free_ports(address: str, count: int = 1) -> int:
    """The first of `count` consecutive ports that are free at an address of this machine."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    while True:
        with contextlib.ExitStack() as probes:
            probe = probes.enter_context(socket.socket(family))
            probe.bind((address, 0))
            first = int(probe.getsockname()[1])
            try:
                for port in range(first + 1, first + count):
                    probes.enter_context(socket.socket(family)).bind((address, port))
            except (OSError, OverflowError):
                continue
            return first
