"""Whether a host fits the server that it wants to join: the same version, the same model, the same options."""

from dataclasses import fields
from typing import Any

from jaxllm.config import MAX_ENGINES, EngineConfig
from jaxllm.serving.ipc.remote.messages import Join
from jaxllm.version import __version__

_OWN = frozenset({
    "data_parallel_size", "data_parallel_size_local", "data_parallel_start_rank", "data_parallel_address",
    "data_parallel_rpc_port", "data_parallel_routing", "compilation_cache_dir", "executables", "compile_workers",
    "profiler_dir",
})  # fmt: skip
"""Options that may differ: they are about a host, or about the server alone."""


def mismatch(config: EngineConfig, join: Join) -> str | None:
    """Why this host may not join, naming what to change; None: it may."""
    if join.version != __version__:
        return f"this host has jaxllm {join.version[:40]}, the server {__version__}: install the same"
    here, there = _options(config), _options(join.config)
    wrong = [name for name in here if here[name] != there[name]]
    if wrong:
        name = wrong[0]
        return f"{name} is {there[name]!r} on this host, and {here[name]!r} on the server: give both the same"
    local = config.parallel.data_parallel_size_local or 0
    if join.first < local or join.count < 1 or join.first + join.count > MAX_ENGINES:
        last = join.first + join.count - 1
        return f"engines {join.first} to {last}: other hosts may have {local} to {MAX_ENGINES - 1} here"
    if len(join.folder) > 80 or not join.folder.startswith("/"):
        return "the folder for sockets has too long a name: set TMPDIR to a shorter one"
    return None


def _options(config: EngineConfig) -> dict[str, Any]:
    sections = (getattr(config, item.name) for item in fields(config))
    found = {item.name: getattr(section, item.name) for section in sections for item in fields(section)}
    return {name: value for name, value in found.items() if name not in _OWN}
