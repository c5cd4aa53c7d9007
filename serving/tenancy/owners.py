"""The owner of a request: of its key, else of its address."""

import ipaddress
import re
from typing import Any

from starlette.requests import Request
from starlette.types import Scope

from jaxllm.owner import Owner

_IPV6_PREFIX = 64
"""Bits of an IPv6 address that one subscriber has; the others are theirs to choose."""


def owner_of(request: Request) -> Owner:
    """Who sent the request: `ApiKeys` has found it out."""
    owner: Owner = request.scope["owner"]
    return owner


def owner_by_address(scope: Scope) -> Owner:
    """The owner of a request without a key. Those that come by a Unix socket, or from this process, are one."""
    client: tuple[Any, ...] | None = scope.get("client")
    if not client or not client[0]:
        return Owner("local")
    host = str(client[0])
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        # What a trusted proxy writes need not be an address.
        return Owner("host:" + re.sub(r"[^!-~ ]", "_", host[:64]))
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return Owner(f"ip:{address.ipv4_mapped}")
        return Owner(f"ip:{ipaddress.ip_network((int(address), _IPV6_PREFIX), strict=False)}")
    return Owner(f"ip:{address}")
