"""The keys of `kv_transfer_config`, which are vLLM's: prefill in one engine, decode in another."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Literal

from jaxllm.errors import ConfigError, nearest

FIRST_PORT = 14579
Role = Literal["kv_producer", "kv_consumer", "kv_both"]
ROLES = ("kv_producer", "kv_consumer", "kv_both")
CONNECTORS = ("ZmqConnector", "NixlConnector", "TPUConnector")
"""The first is our own name. The others are those of vLLM whose requests and answers look the same."""

_LOCAL_COPIES = (
    "OffloadingConnector", "SimpleCPUOffloadConnector", "LMCacheConnectorV1", "LMCacheMPConnector",
    "TPUOffloadConnector", "FlexKVConnectorV1",
)  # fmt: skip
"""Connectors of vLLM that keep copies for the same engine."""


@dataclass(frozen=True, kw_only=True)
class KVTransferSettings:
    """What an engine fetches from others or keeps for them, and within which limits. Times are in seconds."""

    role: Role
    engine_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    host: str = "127.0.0.1"
    """Where a producer listens."""
    port: int = FIRST_PORT
    """0: one that the system chooses. Further engines of a server listen at the following ports."""
    buffer_bytes: int | None = None
    """Host memory for pages of others, and for others; None: as much as the devices have for pages."""
    fails: bool = False
    """Whether a request fails whose pages cannot be fetched. Otherwise they are computed."""
    lease_seconds: float = 480.0
    """How long a producer keeps the pages of a prompt that nobody fetches."""
    fetch_timeout: float = 30.0
    """How long a request waits for its pages."""
    connect_timeout: float = 10.0
    """How long a producer may take to answer for the first time."""
    max_fetches: int = 16
    """Prompts whose pages are under way at once."""
    max_bytes_in_flight: int = 256 << 20
    """Bytes that were asked for and have not come."""
    recompute_threshold: int = 0
    """Tokens below which computing is preferred to fetching."""
    secret_file: str | None = None
    """A file that all engines have, from which the keys of connections are made."""
    peers: tuple[str, ...] = ()
    """Hosts or networks of producers; none: any."""

    @property
    def produces(self) -> bool:
        """Whether others fetch pages here."""
        return self.role != "kv_consumer"

    @property
    def consumes(self) -> bool:
        """Whether pages are fetched from others."""
        return self.role != "kv_producer"


_SECONDS = {
    "kv_lease_duration": "lease_seconds",
    "fetch_timeout": "fetch_timeout",
    "connect_timeout": "connect_timeout",
}
_COUNTS = {
    "max_fetches": ("max_fetches", 1, 4096),
    "max_bytes_in_flight": ("max_bytes_in_flight", 1 << 20, 1 << 40),
    "kv_recompute_threshold": ("recompute_threshold", 0, 1 << 31),
}
_EXTRA = (*_SECONDS, *_COUNTS, "secret_file", "peers")
_KEYS = (
    "kv_connector", "kv_role", "engine_id", "kv_buffer_device", "kv_buffer_size", "kv_rank", "kv_parallel_size",
    "kv_ip", "kv_port", "kv_connector_module_path", "kv_connector_extra_config", "kv_load_failure_policy",
)  # fmt: skip
_REFUSED = {
    "kv_rank": "engines are found by their addresses, in any number",
    "kv_parallel_size": "engines are found by their addresses, in any number",
    "kv_connector_module_path": "code of other connectors is not loaded",
}
_CHOICES = {"kv_role": ROLES, "kv_load_failure_policy": ("recompute", "fail")}
_TEXTS = {"engine_id": "engine_id", "kv_ip": "host"}
_MOST_CHARACTERS = 256
_REFUSED_EXTRA = {
    "backends": "ZeroMQ carries pages; omit it",
    "bidirectional_kv_xfer": "pages go from producers to consumers only; omit it",
    "decoder_kv_blocks_ttl": "pages go from producers to consumers only; omit it",
    "enforce_handshake_compat": "a peer with other pages is always refused; omit it",
}


def read_kv_transfer(given: Mapping[str, Any] | None) -> KVTransferSettings | None:
    """The settings that a configuration asks for; None where nothing is transferred. Raises `ConfigError`."""
    found = {key: value for key, value in (given or {}).items() if value is not None}
    if not found:
        return None
    settings: dict[str, Any] = {}
    for key, value in found.items():
        settings |= _read(key, value)
    if "role" not in settings:
        raise _wrong(f"kv_role is missing; give one of {', '.join(ROLES)}")
    made = KVTransferSettings(**settings)
    if made.produces and made.secret_file is None and not is_loopback(made.host):
        raise _wrong(
            f"kv_ip={made.host!r}: other machines can reach this address, and pages tell of prompts; set "
            "kv_connector_extra_config.secret_file to a file with the same secret for all engines"
        )
    return made


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _wrong(text: str) -> ConfigError:
    return ConfigError(f"kv_transfer_config: {text}")


def _read(key: str, value: Any) -> dict[str, Any]:
    """The settings that a key gives. Raises `ConfigError`."""
    if key in _REFUSED:
        if value != 1 or key != "kv_parallel_size":
            raise _wrong(f"{key}={value!r}: {_REFUSED[key]}; omit it")
        return {}
    if key in _CHOICES:
        if value not in _CHOICES[key]:
            raise _wrong(f"{key}={value!r}: choose one of {', '.join(_CHOICES[key])}")
        return {"role": value} if key == "kv_role" else {"fails": value == "fail"}
    if key in _TEXTS:
        if not isinstance(value, str) or not 0 < len(value) <= _MOST_CHARACTERS:
            raise _wrong(f"{key}={value!r} must be a text of 1 to {_MOST_CHARACTERS} characters")
        return {_TEXTS[key]: value}
    match key:
        case "kv_connector":
            return _check_connector(value)
        case "kv_buffer_device":
            return _check_device(value)
        case "kv_buffer_size":
            return {"buffer_bytes": int(_number(key, value, 1, 2**50))}
        case "kv_port":
            return {"port": _integer(key, value, 0, (1 << 16) - 1)}
        case "kv_connector_extra_config":
            return _read_extra(value)
    raise _wrong(f"unknown key {key!r}{nearest(key, _KEYS)}")


def _check_device(value: Any) -> dict[str, Any]:
    if value != "cpu":
        raise _wrong(f"kv_buffer_device={value!r}: pages pass through host memory; omit it, or give 'cpu'")
    return {}


def _check_connector(value: Any) -> dict[str, Any]:
    if value in CONNECTORS:
        return {}
    if value in _LOCAL_COPIES:
        raise _wrong(
            f"kv_connector={value!r}: copies in host memory and files are options of their own, kv_offloading_size and "
            "kv_offloading_path; for prefill apart from decode give NixlConnector"
        )
    raise _wrong(f"kv_connector={value!r}{nearest(str(value), CONNECTORS)}: choose one of {', '.join(CONNECTORS)}")


def _read_extra(given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise _wrong(f"kv_connector_extra_config={given!r} must be a mapping")
    found: dict[str, Any] = {}
    for key, value in given.items():
        if value is not None:
            found |= _read_extra_key(str(key), value)
    return found


def _read_extra_key(key: str, value: Any) -> dict[str, Any]:
    name = f"kv_connector_extra_config.{key}"
    if key in _SECONDS:
        return {_SECONDS[key]: _number(name, value, 0.1, 86400)}
    if key in _COUNTS:
        target, low, high = _COUNTS[key]
        return {target: _integer(name, value, low, high)}
    if key == "secret_file":
        if not isinstance(value, str) or not value:
            raise _wrong(f"{name}={value!r} must be the name of a file")
        return {key: value}
    if key == "peers":
        if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) and each for each in value):
            raise _wrong(f"{name}={value!r} must be a list of hosts or networks, such as 10.0.0.0/8")
        return {key: tuple(value)}
    if key in _REFUSED_EXTRA:
        if value not in (False, [], {}):
            raise _wrong(f"{name}={value!r}: {_REFUSED_EXTRA[key]}")
        return {}
    raise _wrong(f"unknown key {name!r}{nearest(key, _EXTRA)}")


def _number(name: str, value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise _wrong(f"{name}={value!r} must be a number from {low:g} to {high:g}")
    return value


def _integer(name: str, value: Any, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise _wrong(f"{name}={value!r} must be an integer from {low} to {high}")
    return value
