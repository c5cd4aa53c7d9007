"""Options of fleets: servers that compute prompts, servers that decode, and the router in front of them."""

import re
from dataclasses import dataclass

from jaxllm.config import Section, option
from jaxllm.errors import ConfigError

MOST_SERVERS = 64


@dataclass(frozen=True, kw_only=True)
class FleetOptions(Section):
    """Prompts in some servers, decoding in others. See docs/disaggregation.md."""

    disaggregate: str | None = option(
        None,
        "Start a fleet on this machine instead of one server, as PREFILL:DECODE: so many servers that compute prompts "
        "and so many that decode, with a router in front at --host and --port. See docs/disaggregation.md.",
    )
    min_transfer_tokens: int = option(
        256,
        "Of a router: the fewest tokens of a prompt that are worth computing elsewhere. If fewer are not cached where "
        "the request is decoded, they are computed there.",
        minimum=1,
    )
    prefill_timeout: float = option(
        120.0,
        "Of a router: seconds that a prefill server may take for a prompt; then the prompt is computed where the "
        "request is decoded.",
        minimum=0.1,
    )
    health_interval: float = option(
        2.0, "Of a router: seconds between two questions to a server whether it is healthy.", minimum=0.05
    )

    @property
    def fleet_sizes(self) -> tuple[int, int] | None:
        """How many servers compute prompts, and how many decode; None: there is no fleet. Raises `ConfigError`."""
        if self.disaggregate is None:
            return None
        found = re.fullmatch(r"(\d{1,3}):(\d{1,3})", self.disaggregate)
        sizes = (int(found[1]), int(found[2])) if found else (0, 0)
        if not all(sizes) or sum(sizes) > MOST_SERVERS:
            raise ConfigError(
                f"disaggregate={self.disaggregate!r}: must be PREFILL:DECODE, such as 1:1 or 2:1, with at least one "
                f"of each and at most {MOST_SERVERS} in all"
            )
        return sizes


@dataclass(frozen=True, kw_only=True)
class RouteOptions(Section):
    """The servers behind the router."""

    decode: tuple[str, ...] = option(
        (), "URLs of the servers that answer, such as http://10.0.0.7:8000, or unix:PATH of a socket."
    )
    prefill: tuple[str, ...] = option(
        (), "URLs of the servers that compute long prompts for them. Default: every server computes its own prompts."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.decode:
            raise ConfigError("decode: give the URL of at least one server that answers, such as http://10.0.0.7:8000")
        if len(self.decode) + len(self.prefill) > MOST_SERVERS:
            raise ConfigError(f"decode, prefill: at most {MOST_SERVERS} servers are supported")
        for name in ("decode", "prefill"):
            for url in getattr(self, name):
                if not re.fullmatch(r"https?://[^\s/?#]+/?|unix:.+", url):
                    raise ConfigError(f"{name}={url!r}: must be like http://10.0.0.7:8000 or unix:/path/of/socket")
        if len({*self.decode, *self.prefill}) < len(self.decode) + len(self.prefill):
            raise ConfigError("decode, prefill: a server is given twice")
