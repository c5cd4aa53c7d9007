"""The keys of `kv_events_config`, which are vLLM's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jaxllm.errors import ConfigError, nearest

FIRST_ENDPOINT = "tcp://*:5557"
SCHEMES = ("tcp", "ipc", "inproc")

MANY = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class KVEventsSettings:
    """Where events of the prefix cache are published, and how many are kept for those who come late."""

    endpoint: str = FIRST_ENDPOINT
    replay_endpoint: str | None = None
    snapshot_endpoint: str | None = None
    topic: str = ""
    buffer_steps: int = 10_000
    """Batches that can be replayed."""
    hwm: int = 100_000
    """Batches that wait for one slow subscriber at most; 0: any number."""
    max_queue_size: int = 100_000
    """Batches that wait to be published at most."""
    snapshot_max_blocks: int = 1_000_000
    snapshot_max_response_bytes: int = 256 << 20
    event_format: Literal["map", "array"] = "map"
    """Events as maps, or as arrays of their values, which vLLM published until June 2026."""


_ENDPOINTS = ("endpoint", "replay_endpoint", "snapshot_endpoint")
_NUMBERS = {
    "buffer_steps": 0,
    "hwm": 0,
    "max_queue_size": 1,
    "snapshot_max_blocks": 1,
    "snapshot_max_response_bytes": 1,
}
"""And the least of each."""
_CHOICES = {"publisher": ("zmq", "null"), "event_format": ("map", "array")}
_KEYS = ("enable_kv_cache_events", "publisher", *_ENDPOINTS, "topic", *_NUMBERS, "event_format")


def read_kv_events(given: Mapping[str, Any] | None) -> KVEventsSettings | None:
    """The settings that a configuration asks for; None where nothing is published. Raises `ConfigError`."""
    found = {key: value for key, value in (given or {}).items() if value is not None}
    for key, value in found.items():
        problem = _problem(key, value)
        if problem:
            raise ConfigError(f"kv_events_config: {problem}")
    enabled, publisher = found.pop("enable_kv_cache_events", False), found.pop("publisher", "zmq")
    return KVEventsSettings(**found) if enabled and publisher == "zmq" else None


def _problem(key: str, value: Any) -> str:
    """What is wrong with a value, if anything."""
    match key:
        case "enable_kv_cache_events":
            return "" if isinstance(value, bool) else f"{key}={value!r} must be true or false"
        case "topic":
            return "" if isinstance(value, str) else f"{key}={value!r} must be text"
        case _ if key in _NUMBERS:
            fits = type(value) is int and _NUMBERS[key] <= value <= MANY
            return "" if fits else f"{key}={value!r} must be an integer from {_NUMBERS[key]} to {MANY}"
        case _ if key in _CHOICES:
            return "" if value in _CHOICES[key] else f"{key}={value!r}: choose {' or '.join(_CHOICES[key])}"
        case _ if key in _ENDPOINTS:
            return _endpoint_problem(key, value)
    return f"unknown key {key!r}{nearest(key, _KEYS)}"


def _endpoint_problem(key: str, value: Any) -> str:
    scheme, separator, rest = value.partition("://") if isinstance(value, str) else ("", "", "")
    if not separator or scheme not in SCHEMES or not rest:
        return f"{key}={value!r} must be like tcp://*:5557, ipc:///tmp/name or inproc://name"
    port = rest.rpartition(":")[2]
    if scheme == "tcp" and not (":" in rest and port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        return f"{key}={value!r}: a tcp address ends in a port, such as tcp://*:5557"
    return ""
