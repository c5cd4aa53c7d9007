"""The options of each server of a fleet on this machine, and what of them the router takes for itself."""

import json
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.serving.fleet.servers import Role
from jaxllm.serving.ipc.client.placement import visible_devices
from jaxllm.serving.options.server import ServerOptions

LOOPBACK = "127.0.0.1"
LEASE_SECONDS = 15
"""How long pages are kept for a request whose client left before they were fetched: others are fetched at once."""
_OF_ROUTER = frozenset(
    (
        *("host", "port", "uds", "root_path", "ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_cert_reqs"),
        *("ssl_ciphers", "allowed_origins", "allowed_methods", "allowed_headers", "allow_credentials", "disaggregate"),
        *("max_num_queued_reqs", "trusted_proxies", "access_log", "min_transfer_tokens", "prefill_timeout"),
        *("health_interval", "max_connections_per_address", "kv_transfer_config", "kv_events_config"),
    )
)
"""Options that servers do not get, or get from the fleet."""
_STORES = frozenset(("store_dir", "files_dir"))
"""Folders of one server: that which gets all requests about what is stored."""
_NOT_IN_FLEETS = {
    "takeover": "a fleet cannot take over from another server",
    "headless": "each server has its engine here",
    "data_parallel_size": "give more servers, as in --disaggregate 1:2",
    "nnodes": "servers of several hosts are started one by one, with `jaxllm route` in front",
    "kv_events_config": "the fleet arranges the events of its servers; omit it",
    "kv_transfer_config": "the fleet arranges transfers; omit it",
}
_LONGEST_SOCKET = 100
"""Bytes of a path of a Unix socket: sockaddr_un has 108."""


def check_options(given: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for options that fleets do not have."""
    for name, reason in _NOT_IN_FLEETS.items():
        value = given.get(name)
        if value is not None and value is not False and not (type(value) is int and value == 1):
            raise ConfigError(f"disaggregate cannot be combined with {name}: {reason}")


class FleetSettings:
    """What each of `count` servers gets, with files in a folder that only this user can read."""

    def __init__(
        self, given: Mapping[str, Any], config: EngineConfig, options: ServerOptions, folder: Path, count: int
    ) -> None:
        """`given` are the options of the whole fleet. Raises `ConfigError`."""
        check_options(given)
        self._given, self._folder = given, folder
        self._secret = folder / "secret"
        self._options = options
        parallel = replace(config.parallel, data_parallel_size=count, data_parallel_size_local=None)
        self.variables = [visible_devices(number, parallel) for number in range(count)]
        """For the environment of each server: which devices it sees."""
        cache = config.cache
        chosen = cache.kv_cache_memory_bytes is not None or cache.num_gpu_blocks_override is not None
        # They share the memory of the processors; devices are their own.
        shares = not any(self.variables) and not chosen
        self._cache = {"gpu_memory_utilization": max(0.01, cache.gpu_memory_utilization / count)} if shares else {}
        if len(str(folder / "decode-00.events")) > _LONGEST_SOCKET:
            raise ConfigError(f"the path {str(folder)!r} is too long for sockets: set TMPDIR to a shorter one")

    def write_secret(self, secret: str) -> None:
        """What servers prove to each other before pages are exchanged."""
        self._secret.touch(mode=0o600)
        self._secret.write_text(secret, encoding="utf-8")

    def write(self, role: Role, name: str, port: int, *, first: bool) -> Path:
        """The file for `--config` of a server at this port; `first`: the one with what is stored."""
        left_out = _OF_ROUTER if first else _OF_ROUTER | _STORES
        options: dict[str, Any] = {key: value for key, value in self._given.items() if key not in left_out}
        transfer = {
            "kv_connector": "ZmqConnector",
            "kv_role": "kv_producer" if role == "prefill" else "kv_consumer",
            "kv_ip": LOOPBACK,
            "kv_port": 0,
            "kv_connector_extra_config": {"secret_file": str(self._secret), "kv_lease_duration": LEASE_SECONDS},
        }
        events = {
            "enable_kv_cache_events": True,
            "endpoint": f"ipc://{self._folder / name}.events",
            "replay_endpoint": f"ipc://{self._folder / name}.replay",
        }
        options |= {
            "host": LOOPBACK, "port": port, "trusted_proxies": [LOOPBACK], "ui": role == "decode" and self._options.ui,
            "kv_transfer_config": transfer, "kv_events_config": events, **self._cache,
        }  # fmt: skip
        path = self._folder / f"{name}.json"
        path.touch(mode=0o600)
        # JSON is YAML.
        path.write_text(json.dumps({key.replace("_", "-"): value for key, value in options.items()}), encoding="utf-8")
        return path


def free_port() -> int:
    """A port of the loopback address that nobody has."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
