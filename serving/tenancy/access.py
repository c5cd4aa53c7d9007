"""Whom the server lets in, how much of it they may use, and whose a request is: of its key, else of its address."""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.types import Scope

from jaxllm.errors import ConfigError
from jaxllm.requests.owners import Owner
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.tenancy.keys import Key, KeyFile, KeyRing, plain_key, read_key_file
from jaxllm.serving.tenancy.quotas import Account, Quota, Quotas

NO_QUOTA = Quota()
_IPV6_PREFIX = 64
"""Bits of an IPv6 address that one subscriber has; the others are theirs to choose."""


class Access:
    """The keys and quotas of the server, which follow their file."""

    def __init__(self, keys: Sequence[str], file: str | None = None, num_servers: int = 1) -> None:
        """With `num_servers` processes, each has its part of every quota. Raises `ConfigError` for a wrong file."""
        self.needs_key = False
        """Whether requests must bring a key."""
        self._plain = [plain_key(key) for key in keys]
        self._path = None if file is None else Path(file)
        self._num_servers = num_servers
        self._written = self._modified_time()
        self._take(KeyFile([]) if file is None else read_key_file(file))
        self._accounts = Quotas()

    @classmethod
    def of(cls, options: ServerOptions) -> "Access":
        """As the options say. Raises `ConfigError`."""
        return cls(options.api_key, options.api_key_file, options.api_server_count)

    def find(self, given: bytes) -> Key | None:
        """The key that a request brings, or None if it is unknown."""
        return self._ring.find(given)

    def account(self, owner: Owner) -> Account | None:
        """The rest of an owner's quota; None where it has no limits."""
        quota = self._quotas.get(owner.name, NO_QUOTA)
        return None if quota == NO_QUOTA else self._accounts.account(owner, quota)

    def reload(self) -> bool:
        """Read the file again if it has changed; whether it has. Raises `ConfigError`, and all stays as it was."""
        written = self._modified_time()
        if self._path is None or written == self._written:
            return False
        self._written = written
        if written is None:
            raise ConfigError(f"api_key_file={str(self._path)!r}: the file no longer exists")
        self._take(read_key_file(str(self._path)))
        return True

    def _take(self, file: KeyFile) -> None:
        keys = [*self._plain, *file.keys]
        # Where the clients have a file, the key alongside it is the operator's; so is one that nobody shares.
        alone = len({key.digest for key in keys}) == 1
        plain = [replace(key, is_operator=alone or bool(file.keys)) for key in self._plain]
        listed = [replace(key, is_operator=key.is_operator or alone) for key in file.keys]
        self._ring = KeyRing([*listed, *plain])
        self.needs_key = len(self._ring) > 0
        self._quotas = {name: quota.divided(self._num_servers) for name, quota in file.quotas.items()}

    def _modified_time(self) -> tuple[int, int, int] | None:
        try:
            found = None if self._path is None else self._path.stat()
        except OSError:
            return None
        return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)


def owner_of(request: Request) -> Owner:
    """Who sent the request: `ApiKeys` has found it out."""
    owner: Owner = request.scope["owner"]
    return owner


def is_operator(scope: Scope) -> bool:
    """Whether a request may do what concerns other clients: it brings the operator's key, or no key is needed."""
    return bool(scope.get("is_operator", False))


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
