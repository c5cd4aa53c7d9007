"""Which addresses files may be fetched from."""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Self

from jaxllm.errors import ConfigError
from jaxllm.serving.media.errors import MediaFetchError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolver = Callable[[str, int], Awaitable[list[str]]]
"""Addresses of a host, for a port; raises `OSError`."""

_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_NOT_PUBLIC: Final = tuple(
    ipaddress.IPv6Network(text)
    # IPv4-compatible addresses, local NAT64, Teredo, and what was for sites: gateways may lead them anywhere.
    for text in ("::/96", "64:ff9b:1::/48", "2001::/32", "fec0::/10")
)


def reached(address: Address) -> Address:
    """The IPv4 address that an IPv6 address leads to, where it holds one."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_public(address: Address) -> bool:
    """Whether an address is one of the internet, and no multicast, and leads to no other."""
    address = reached(address)
    if isinstance(address, ipaddress.IPv6Address) and any(address in network for network in _NOT_PUBLIC):
        return False
    # Python says that multicast is global.
    return address.is_global and not address.is_multicast and not address.is_reserved


@dataclass(frozen=True)
class AddressPolicy:
    """Public addresses, and those of some networks."""

    networks: tuple[Network, ...] = ()

    @classmethod
    def read(cls, texts: tuple[str, ...]) -> Self:
        """From --allowed-media-networks. Raises `ConfigError`."""
        found: list[Network] = []
        for text in texts:
            try:
                each = ("0.0.0.0/0", "::/0") if text == "*" else (text,)
                found += [ipaddress.ip_network(network) for network in each]
            except ValueError as error:
                raise ConfigError(f"allowed_media_networks: {error}") from None
        return cls(tuple(found))

    def allows(self, address: Address) -> bool:
        """Whether images may come from there."""
        target = reached(address)
        return is_public(address) or any(target in each for each in self.networks if each.version == target.version)

    async def addresses(self, host: str, port: int, resolver: Resolver) -> list[str]:
        """Resolve a host once; the connection then goes to one of these.

        Raises `MediaFetchError` if there is none, or any that is not allowed: a name for several networks is a trap.
        The address itself is not told, since clients need not know names of private networks.
        """
        try:
            texts = await resolver(host, port)
            found = [ipaddress.ip_address(text.partition("%")[0]) for text in texts]
        except (OSError, UnicodeError, ValueError):
            found = []
        if not found:
            raise MediaFetchError(f"the host {host!r} is not known")
        if not all(map(self.allows, found)):
            raise MediaFetchError(f"the host {host!r} has an address that is not public")
        return list(dict.fromkeys(map(str, found)))


async def resolve(host: str, port: int) -> list[str]:
    """Ask the system. Numbers in unusual notations become addresses too, and are then judged."""
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(info[4][0]) for info in infos]
