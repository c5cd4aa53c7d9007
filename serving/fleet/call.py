"""A request of a client whose body was read."""

from dataclasses import dataclass
from typing import Any

import msgspec

from jaxllm.serving.fleet.exchange import Headers


@dataclass(frozen=True, kw_only=True)
class Call:
    """`path` has the query, `body` is empty unless `data` is a JSON object."""

    path: str
    headers: Headers
    data: bytes
    body: dict[str, Any]

    @property
    def json_headers(self) -> Headers:
        """Headers of a request made from this one, with a body of JSON."""
        return {**self.headers, "content-type": "application/json"}


def json_object(data: bytes) -> dict[str, Any] | None:
    """The object that a body is; None for anything else, which a server will reject better than we can."""
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
