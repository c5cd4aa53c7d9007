"""All options of the server, as in `jaxllm.config`; names are vLLM's wherever vLLM has one."""

import argparse
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jaxllm.compat.vllm.options import NOOP_OPTIONS, NOOP_SERVER_OPTIONS, NoopOption
from jaxllm.compat.vllm.options.environment import options_of_variables
from jaxllm.config import Section
from jaxllm.errors import ConfigError
from jaxllm.flags import Flag, add_section_flags, engine_flags, section_flags
from jaxllm.serving.options.fleet import FleetOptions
from jaxllm.serving.options.limits import LimitOptions, RestartOptions, StorageOptions
from jaxllm.serving.options.media import MediaOptions
from jaxllm.serving.options.network import AccessOptions, HostOptions, HTTPOptions, TLSOptions
from jaxllm.serving.options.observability import ObservabilityOptions
from jaxllm.serving.options.requests import AdapterOptions, APIOptions, ChatOptions

_OBJECT = (r"\w[\w.]*[.:]\w[\w.]*", "module:attribute or module.attribute")
_FORMS = (
    ("middleware", *_OBJECT),
    ("include_router", *_OBJECT),
    ("lora_resolver_hf_repos", r"[\w.-]+/[\w.-]+", "organization/name"),
)
"""Options of several texts that have a form: its regular expression, and how an error calls it."""


@dataclass(frozen=True, kw_only=True)
class ServerOptions(
    HTTPOptions,
    AccessOptions,
    TLSOptions,
    APIOptions,
    ChatOptions,
    AdapterOptions,
    MediaOptions,
    LimitOptions,
    RestartOptions,
    StorageOptions,
    HostOptions,
    FleetOptions,
    ObservabilityOptions,
):
    """The HTTP server: addresses, access, limits and logs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ssl_keyfile and not self.ssl_certfile:
            raise ConfigError("ssl_keyfile requires ssl_certfile")
        if self.strict_fields and self.ignore_unknown_fields:
            raise ConfigError("ignore_unknown_fields and strict_fields cannot be combined")
        if self.root_path is not None and not self.root_path.startswith("/"):
            raise ConfigError(f"root_path={self.root_path!r}: must begin with /")
        if self.fingerprint_mode == "custom" and not self.fingerprint_value:
            raise ConfigError("fingerprint_mode='custom' requires fingerprint_value")
        if not re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", self.metrics_prefix):
            raise ConfigError(
                f"metrics_prefix={self.metrics_prefix!r}: must consist of letters, digits and underscores, and not "
                "begin with a digit"
            )
        if self.store_dir is not None and self.api_server_count > 1:
            raise ConfigError("store_dir requires api_server_count=1: responses are stored by one process")
        for name in ("served_model_name", "api_key"):
            if not all(map(str.strip, getattr(self, name))):
                raise ConfigError(f"{name}: values must not be blank")
        for name, pattern, form in _FORMS:
            for text in getattr(self, name):
                if not re.fullmatch(pattern, text):
                    raise ConfigError(f"{name}={text!r}: must have the form {form}")


SERVER_SECTIONS: Final[Mapping[str, type[Section]]] = {
    "http": HTTPOptions,
    "access": AccessOptions,
    "tls": TLSOptions,
    "api": APIOptions,
    "chat": ChatOptions,
    "adapters": AdapterOptions,
    "media": MediaOptions,
    "limits": LimitOptions,
    "restarts": RestartOptions,
    "storage": StorageOptions,
    "hosts": HostOptions,
    "fleet": FleetOptions,
    "observability": ObservabilityOptions,
}
"""The parts of `ServerOptions`, by their names in help and documentation."""


def server_flags() -> tuple[Flag, ...]:
    """The flag of every option of the server."""
    return tuple(flag for name, options in SERVER_SECTIONS.items() for flag in section_flags(name, options))


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every option of the server, each section under a heading of its own."""
    for name, options in SERVER_SECTIONS.items():
        add_section_flags(parser, name, options)


def noop_flags() -> dict[str, NoopOption]:
    """Flags of `vllm serve` that have no effect on `jaxllm serve`."""
    real = {flag.flag.removeprefix("--") for flag in server_flags()}
    every = {**NOOP_OPTIONS, **NOOP_SERVER_OPTIONS}
    return {name: every[name] for name in sorted(every) if name not in real}


def from_environment(environ: Mapping[str, str], warn: Callable[[str], None]) -> dict[str, Any]:
    """Options of server and engine whose values the environment gives: texts, and tuples of comma-separated texts.

    `warn` is told, in a line, of each variable of vLLM's. Blank variables count as missing. Raises `ConfigError` for a
    value that cannot be read, or holds nothing but commas.
    """
    flags = (*engine_flags(), *server_flags())
    ours = {flag.name: flag.info.environment for flag in server_flags() if flag.info.environment}
    found = options_of_variables(environ, {flag.name for flag in flags}, warn, ours)
    for flag in server_flags():
        text = environ.get(flag.info.environment or "", "")
        if not text.strip():
            continue
        parts = tuple(part for part in map(str.strip, text.split(",")) if part)
        if flag.kind is tuple and not parts:
            raise ConfigError(f"{flag.info.environment}={text!r} in the environment: contains no value")
        found[flag.name] = parts if flag.kind is tuple else text
    return found
