"""Addresses of an engine's sockets, and the sockets."""

import zmq

from jaxllm.errors import ConfigError
from jaxllm.hosts.own_address import own_address


def endpoint_of(endpoint: str, rank: int) -> str:
    """The address of the engine with this rank: TCP ports are counted on from that of rank 0. Raises `ConfigError`."""
    if rank == 0:
        return endpoint
    if endpoint.startswith("inproc://"):
        return f"{endpoint}_dp{rank}"
    if not endpoint.startswith("tcp://"):
        raise ConfigError(f"kv_events_config: {endpoint!r}: several engines need tcp addresses")
    host, _, port = endpoint.rpartition(":")
    if port == "0":
        return endpoint
    if int(port) + rank >= 1 << 16:
        raise ConfigError(f"kv_events_config: {endpoint!r}: the port of engine {rank} would be {int(port) + rank}")
    return f"{host}:{int(port) + rank}"


def binds(endpoint: str) -> bool:
    """Whether the publisher is the side that others connect to; it connects to plain hosts, as vLLM's does."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


def opened(kind: int, endpoint: str, most: int, *, bind: bool) -> "zmq.Socket[bytes]":
    """A socket for messages out; at most `most` wait for each peer. Raises `ConfigError`."""
    # The context of the process: `inproc` addresses are found within one.
    found: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    found.set_hwm(most)
    found.setsockopt(zmq.LINGER, 0)
    if "::" in endpoint:
        found.setsockopt(zmq.IPV6, 1)
    try:
        found.bind(endpoint) if bind else found.connect(endpoint)
    except zmq.ZMQError as error:
        found.close()
        raise ConfigError(f"kv_events_config: cannot use {endpoint!r}: {error}") from error
    return found


def address_of(found: "zmq.Socket[bytes]", endpoint: str) -> str:
    """Where others reach a socket: of `tcp://*:0`, the host and the port that the system has chosen."""
    if not endpoint.startswith("tcp://") or not endpoint.endswith(":0"):
        return endpoint
    port = found.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2]
    host = endpoint.removeprefix("tcp://").rpartition(":")[0]
    return f"tcp://{own_address() if host == '*' else host}:{port}"
