"""The owner of a request: of its key, else of its address. Keys are known by their digests alone."""

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Key:
    """A key that the server knows. digest: SHA-256 of its bytes."""

    digest: bytes
    owner: Owner


class KeyRing:
    """The keys that open the server. With none, it is open to everybody."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._keys = {key.digest: key for key in keys}

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, given: bytes) -> Key | None:
        """The key that these bytes are, or None.

        The time it takes tells nothing of the keys: only digests are looked up and compared.
        """
        digest = digest_of(given)
        key = self._keys.get(digest)
        return key if key is not None and hmac.compare_digest(key.digest, digest) else None


def plain_key(key: str) -> Key:
    """A key given as it is, which is an owner by itself."""
    return hashed_key(digest_of(key.encode(errors="surrogateescape")))


def hashed_key(digest: bytes, name: str | None = None, weight: float = 1.0) -> Key:
    """A key given by its digest; all keys of one `name` are one owner."""
    # Not the digest itself: that would be enough to guess keys by, wherever an owner is shown.
    shown = f"name:{name}" if name is not None else f"key:{hashlib.sha256(b'owner' + digest).hexdigest()[:16]}"
    return Key(digest, Owner(shown, weight))


def digest_of(key: bytes) -> bytes:
    """What the server knows a key by."""
    return hashlib.sha256(key).digest()
