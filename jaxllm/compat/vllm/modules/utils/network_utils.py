"""Addresses and ports of this machine."""

import socket

from jaxllm.hosts.own_address import own_address as get_ip

__all__ = ["get_ip", "get_open_port"]


def get_open_port() -> int:
    """A TCP port that nobody uses now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])
